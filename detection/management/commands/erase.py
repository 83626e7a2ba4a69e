"""``erase``: removes a session, or all of an agent, everywhere, and prints the receipt. Retries one that failed."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.management.choices import chosen_project
from detection.models import Erasure
from detection.selectors.erasures import ErasureRow, removed
from detection.selectors.row_fields import document_of
from detection.services.audit import Actor
from detection.services.errors import NotFound, ServiceError
from detection.services.retention import erasure

_POLL_SECONDS = 0.2
_SHOW_SECONDS = 1.0


class Command(BaseCommand):
    """Erase immediately; also works without a running worker."""

    help = "Erase a session, or all sessions of an agent, with everything recorded about them."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--project", metavar="SLUG", help="the project; not needed if there is only one")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--session", metavar="NAME", help="erase this session")
        what.add_argument("--agent", metavar="NAME", help="erase all sessions of this agent")
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        parser.add_argument("--json", action="store_true", help="print the receipt as the API returns it")

    def handle(self, *_: object, **options: Any) -> None:
        """Request the erasure, carry it out, and print the receipt."""
        project = chosen_project(options["project"])
        of, name = ("session", options["session"]) if options["session"] else ("agent", options["agent"])
        if not options["yes"]:
            what = "the session" if of == "session" else "all sessions of the agent"
            self.stdout.write(
                f'This removes {what} "{name}" from the project {project.slug}, with everything recorded about them.'
                " It cannot be undone."
            )
            if not sys.stdin.isatty() or input("Type the name to continue: ") != name:
                raise CommandError("Nothing was erased. `--yes` erases without asking.")
        try:
            row = erasure.request_erasure(project.pk, of, name, Actor("command line"))
        except NotFound as error:
            raise CommandError(f'Nothing is stored about the {of} "{name}".') from error
        except ServiceError as error:
            raise CommandError(error.detail) from error
        self._wait(row)
        if options["json"]:
            self.stdout.write(json.dumps(document_of(row, ErasureRow)))
            return
        self.stdout.write(f"Erased, receipt {row.public_id}:")
        for kind, count in removed(row).items():
            self.stdout.write(f"  {count:,} {kind.replace('_', ' ')}")

    def _wait(self, row: Erasure) -> None:
        """Carry out the erasure, or wait for a worker that has started it, until it is finished or has failed."""
        shown, error = time.monotonic(), ""
        while row.finished_at is None:
            if not erasure.run_waiting(lambda: False, project_id=row.project_id):
                time.sleep(_POLL_SECONDS)
            row.refresh_from_db()
            if row.state == "failed":
                again = "Run the command again to retry it."
                raise CommandError(f"Erasure {row.public_id} failed: {row.error} {again}")
            if row.error != error:
                error = row.error
                self.stderr.write(f"Interrupted: {error} Trying again.")
            if sys.stderr.isatty() and time.monotonic() > shown + _SHOW_SECONDS:
                shown = time.monotonic()
                self.stderr.write(f"{row.removed.get('sessions', 0):,} sessions", ending="\r")
