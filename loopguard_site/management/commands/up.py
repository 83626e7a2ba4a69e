"""`manage.py up`: sets up what is missing and runs everything. Listed here; run before Django is loaded."""

from loopguard_site.management.without_django import WithoutDjango


class Command(WithoutDjango):
    """Set up what is missing and run LoopGuard."""

    name = "up"
    help = "Set up what is missing and run LoopGuard: servers, console, API and workers."
