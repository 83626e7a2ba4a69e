"""`distribute`: spreads the tables over the nodes of a Citus cluster, each project on one of them."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, DatabaseError

from detection.services.errors import Conflict
from detection.services.storage import distribution


class Command(BaseCommand):
    """Run after `prepare`, once; running it again moves what is not yet where it belongs."""

    help = "Spread the tables over the nodes of a Citus cluster, by project (docs/scaling.md)."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "--yes", action="store_true", help="do not ask whether LoopGuard may stop meanwhile"
        )

    def handle(self, *_: object, **options: Any) -> None:
        """Say what will be done, ask, and do it."""
        owner = "owner" if "owner" in settings.DATABASES else DEFAULT_DB_ALIAS
        try:
            with distribution.entered(owner) as was_left_closed:
                self._distribute(owner, was_left_closed=was_left_closed, asks=not options["yes"])
        except Conflict as error:
            raise CommandError(error.detail) from error
        except DatabaseError as error:
            raise CommandError(
                f"{str(error).strip()}\nIf a table was moved, requests are answered with 503 until `distribute` has "
                "run to its end: remove the cause and run it again."
            ) from error

    def _distribute(self, owner: str, *, was_left_closed: bool, asks: bool) -> None:
        steps = distribution.plan(owner)
        if not steps and not was_left_closed:
            self.stdout.write("All tables are where they belong; nothing was changed.")
            return
        for step in steps:
            self.stdout.write(f"{step.table}: {'to every node' if step.is_everywhere else 'by project'}")
        self.stdout.write(
            "Until all are moved, requests are answered with 503 and Retry-After. There is no way back but a backup."
        )
        if asks and not _agrees("Move these tables? [y/N] "):
            raise CommandError("Nothing was changed.")
        seconds = distribution.distribute(owner, steps, self._report)
        self.stdout.write(f"Moved {len(steps)} tables. Requests were answered with 503 for {seconds:.1f} s.")

    def _report(self, what: str, seconds: float) -> None:
        self.stdout.write(f"{what}: {seconds:.1f} s")


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise CommandError("Requests would be rejected meanwhile: add --yes.")
    return input(question).strip().lower() in ("y", "yes")
