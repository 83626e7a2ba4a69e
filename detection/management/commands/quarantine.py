"""``quarantine``: lists quarantined events with their tracebacks, or evaluates them again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.models import Project, QuarantinedEvent
from detection.services.audit import Actor
from detection.services.errors import NotFound
from detection.services.sessions import quarantine
from detection.services.sessions.quarantine import RetryResult


class Command(BaseCommand):
    """List quarantined events; with ``--retry``, evaluate them again."""

    help = "List events whose evaluation failed, or retry them."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--project", metavar="SLUG", help="only events of this project")
        parser.add_argument("--session", metavar="NAME", help="only events of sessions with this name")
        parser.add_argument("--retry", action="store_true", help="evaluate them again")
        parser.add_argument("--tracebacks", action="store_true", help="list them with their tracebacks")

    def handle(self, *_: object, **options: Any) -> None:
        """Print one line per event, or the result of the retry."""
        rows = QuarantinedEvent.objects.order_by("session_id", "seq")
        if options["project"]:
            if not Project.objects.filter(slug=options["project"]).exists():
                raise CommandError(f"There is no project `{options['project']}`.")
            rows = rows.filter(project__slug=options["project"])
        if options["session"]:
            rows = rows.filter(session__external_id=options["session"])
        if options["retry"]:
            self._retry(rows)
            return
        for row in rows.select_related("session", "project").iterator():
            self.stdout.write(
                f"{row.project.slug} {row.session.external_id!r} #{row.seq} {row.type} {row.tool!r}: {row.error}"
            )
            if options["tracebacks"]:
                self.stdout.write(row.traceback)
        self.stdout.write(f"{rows.count():,} quarantined events.")

    def _retry(self, rows: Any) -> None:
        result, actor = RetryResult(), Actor("command line")
        sessions = rows.order_by("session_id").values_list("project_id", "session__external_id").distinct()
        for project_id, external_id in [*sessions]:
            try:
                result += quarantine.retry(project_id, external_id, actor)
            except NotFound:  # removed or retried meanwhile
                continue
        self.stdout.write(
            f"{result.evaluated:,} evaluated, {result.failed:,} failed "
            f"again, {result.expired:,} too old or without payload."
        )
        if result.failed:
            raise CommandError("Some events failed again. `quarantine --tracebacks` shows their errors.")
