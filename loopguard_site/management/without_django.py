"""Commands that `manage.py` runs before Django is loaded, as entries of its list of commands."""

import sys

from django.core.management.base import BaseCommand

from loopguard_site.supervisor.commands import WITHOUT_DJANGO


class WithoutDjango(BaseCommand):
    """Hands its arguments on unread, however it was called."""

    name = ""

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command outside Django's own reading of arguments."""
        sys.exit(WITHOUT_DJANGO[self.name](argv[2:]))
