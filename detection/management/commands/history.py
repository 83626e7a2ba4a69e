"""``history``: packs the events of sessions that have rested for long, and unpacks them."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from detection.management.choices import chosen_project
from detection.models import Project, Session
from detection.models.projects import MIN_PACK_DAYS
from detection.selectors.packed_events import packed_sum
from detection.services.retention import history
from detection.services.retention.history import HistoryCount


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError("must be a day, as in 2026-08-31") from None


class Command(BaseCommand):
    """Only the database has to run."""

    help = "Pack the events of sessions that have rested for long, unpack them, or say how much is packed."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("action", choices=("pack", "unpack", "show"), help="what to do")
        parser.add_argument("--project", metavar="SLUG", help="the project; not needed if there is only one")
        parser.add_argument("--session", default="", metavar="NAME", help="only this session")
        parser.add_argument(
            "--until",
            type=_day,
            metavar="YYYY-MM-DD",
            help="pack: sessions without an event since this day; otherwise the project's setting decides",
        )
        parser.add_argument(
            "--since",
            type=_day,
            metavar="YYYY-MM-DD",
            help="unpack: sessions with an event since this day; otherwise all",
        )

    def handle(self, *_: object, **given: Any) -> None:
        """Pack, unpack or show."""
        options = Namespace(**given)
        project = chosen_project(options.project)
        if options.session and not _named(project, options.session).exists():
            raise CommandError(f'The project has no session "{options.session}".')
        if options.action == "pack":
            self._pack(project, options)
        elif options.action == "unpack":
            since = _start(options.since) if options.since else None
            done = history.unpack(project, name=options.session, since=since, report=self._report)
            self.stdout.write(f"Unpacked {_words(done)}.")
            if done.sessions and project.pack_after_days:
                self.stdout.write(f"They are packed again after {project.pack_after_days} days.")
        self._show(project)

    def _pack(self, project: Project, options: Namespace) -> None:
        newest = timezone.now() - timedelta(days=MIN_PACK_DAYS)
        if options.until is not None:
            before = _start(options.until)
        elif project.pack_after_days:
            before = timezone.now() - timedelta(days=project.pack_after_days)
        else:
            raise CommandError("The project packs nothing by itself: say with --until up to which day.")
        if before > newest:
            raise CommandError(
                f"--until must be {newest.date()} or earlier: events may be {MIN_PACK_DAYS} days late."
            )
        done = history.pack(project, before, name=options.session, report=self._report)
        self.stdout.write(f"Packed {_words(done)}.")
        if options.session and not done.sessions:
            if _named(project, options.session).filter(packed_at__isnull=False).exists():
                self.stdout.write("It was packed already.")
            else:
                raise CommandError(
                    "The session was not packed: it has newer events, was unpacked since, is too long, or something of"
                    " it is still open or waits for evaluation, counts or the index."
                )

    def _show(self, project: Project) -> None:
        found = packed_sum(project.pk)
        self.stdout.write(
            f"{project.slug}: {found.sessions:,} sessions with {found.events:,} events are packed,"
            f" {found.row_bytes:,} bytes of rows in {found.packed_bytes:,} bytes."
        )

    def _report(self, done: HistoryCount) -> None:
        self.stderr.write(f"{_words(done)} …")


def _named(project: Project, name: str) -> Any:
    return Session.objects.filter(project_id=project.pk, external_id=name)


def _start(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _words(done: HistoryCount) -> str:
    return f"{done.sessions:,} sessions with {done.events:,} events"
