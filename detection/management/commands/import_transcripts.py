"""``import_transcripts``: loads past runs of agents, and reports what loops cost in them."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from detection.integrations.labels import LabelError, Labels, labels_of
from detection.integrations.transcripts import TranscriptError
from detection.management.choices import chosen_project
from detection.models import Project
from detection.selectors.prices import load_prices
from detection.services.audit import Actor
from detection.services.ingestion import run_import, transcript_files, transcript_imports
from detection.services.ingestion.run_import import ImportSummary
from detection.services.ingestion.transcript_files import ENDINGS, ENDINGS_OF, KINDS
from detection.services.maintenance import recalculations

MAX_LISTED: Final = 100
"""Unreadable files that the page of the import names."""


class Command(BaseCommand):
    """Import files; importing them again adds only what is new."""

    help = "Load past agent runs as sessions, and report the calls and the money spent in loops."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("kind", choices=KINDS, help="format of the transcripts")
        parser.add_argument(
            "path", type=Path, help="a file, or a folder that is searched for such files and .zip archives"
        )
        parser.add_argument("--project", metavar="SLUG", help="needed only if there are several projects")
        parser.add_argument(
            "--usd-per-million-tokens",
            nargs=2,
            type=float,
            metavar=("INPUT", "OUTPUT"),
            help="prices, for records that have tokens but no costs; the project's prices by default",
        )

        parser.add_argument(
            "--tag", action="append", default=[], help="a tag for the sessions; may be repeated"
        )
        parser.add_argument(
            "--metadata",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="metadata for the sessions; may be repeated",
        )

    def handle(self, *_: object, **options: Any) -> None:
        """Import the files, then print the summary."""
        # What it finds is in the summary, and why it cannot connect in the error; more lines would bury them.
        logs = [logging.getLogger(name) for name in ("detection.services.sessions", "psycopg.pool")]
        before = [log.level for log in logs]
        for log in logs:
            log.setLevel(logging.ERROR)
        try:
            self._import(chosen_project(options["project"]), options["path"], options)
        finally:
            for log, level in zip(logs, before, strict=True):
                log.setLevel(level)

    def _import(self, project: Project, path: Path, options: dict[str, Any]) -> None:
        kind, prices_given = options["kind"], options["usd_per_million_tokens"]
        files = _files(path, kind)
        principal, totals, rows = run_import.importer(project), Counter[str](), set[int]()
        labels = principal.redactor.labels(_labels(options["tag"], options["metadata"]))
        priced_at = timezone.now()
        prices, skipped = load_prices(project.pk), list[str]()
        for number, file in enumerate(files, 1):
            self._progress(number, len(files), file)
            try:
                totals.update(bytes=file.stat().st_size)
                for one in transcript_files.files_of(
                    file, str(file), transcript_files.allowance(), str(file.resolve())
                ):
                    runs = run_import.FileImport(principal, kind, labels, prices_given, prices)
                    try:
                        for name, event in transcript_files.events(kind, one):
                            runs.add(name, event)
                    finally:
                        for run in runs.end():
                            totals.update(events=run.added, known=run.known, live=run.session_id is None)
                            rows.update([run.session_id] if run.session_id is not None else [])
            except (TranscriptError, OSError) as error:
                skipped.append(str(error))
                self.stderr.write(_storable(str(error)))
        recalculations.request_if_changed(project.pk, priced_at)
        summary = run_import.summarise(project, rows)
        self._report(totals, summary)
        if totals["events"] or skipped:
            transcript_imports.note_import(
                project.pk,
                Actor("command line"),
                kind=kind,
                path=_storable(str(path.resolve())),
                size=totals["bytes"],
                prices=prices_given,
                labels=labels,
                events=totals["events"],
                skipped=[*map(_storable, skipped[:MAX_LISTED]), *_passed_over(totals)],
                summary=summary,
            )
        if skipped:
            raise CommandError(f"{len(skipped)} files could not be read. The reasons are above.")

    def _progress(self, number: int, count: int, file: Path) -> None:
        if self.stderr.isatty():
            done = 24 * number // count
            end = "\n" if number == count else ""
            self.stderr.write(f"\r[{'#' * done:<24}] {number} of {count} {file.name[:40]:<40}", ending=end)

    def _report(self, totals: Counter[str], summary: ImportSummary) -> None:
        write = self.stdout.write
        write(f"{summary.sessions:,} sessions, {summary.calls:,} calls. New events: {totals['events']:,}.")
        for sentence in _passed_over(totals):
            write(sentence)
        share = f" ({summary.loop_calls / summary.calls:.1%} of all)" if summary.calls else ""
        cost = f", ${summary.loop_cost_usd:,.2f}" if summary.loop_cost_usd else ""
        write(
            f"{summary.loops:,} loops in {summary.looping_sessions:,} sessions:"
            f" {summary.loop_calls:,} calls{share}{cost}."
        )
        if summary.loops and not cost:
            write(
                "Their cost is unknown, because they were imported without prices. If the records have tokens, prices"
                " that you save later, on the page Prices or with PUT /api/v1/prices, apply to them."
            )
        for loop in summary.worst:
            price = f", ${loop.cost_usd:,.2f}" if loop.cost_usd else ""
            write(f"  {loop.calls:>5,} calls{price}  {loop.tool}  {loop.session}\n         {loop.url}")
        write(summary.url)


def _labels(tags: list[str], metadata: list[str]) -> Labels:
    pairs = [pair.partition("=") for pair in metadata]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise CommandError(f"--metadata must be KEY=VALUE, not {wrong[0]!r}.")
    try:
        return labels_of(tags, {key: value for key, _, value in pairs})
    except LabelError as error:
        raise CommandError(error.detail) from None


def _storable(text: str) -> str:
    """Return a text with the bytes of file names that are no UTF-8 escaped."""
    return text.encode(errors="backslashreplace").decode()


def _passed_over(totals: Counter[str]) -> list[str]:
    return [f"{totals['live']:,} sessions were recorded live and are not changed."] if totals["live"] else []


def _files(path: Path, kind: str) -> list[Path]:
    if path.is_file():
        return [path]
    endings = ENDINGS_OF.get(kind, ENDINGS)
    files = sorted(one for one in path.rglob("*") if one.is_file() and one.name.endswith((*endings, ".zip")))
    if not files:
        names = " or ".join(endings) if kind in ENDINGS_OF else ".jsonl or .json"
        raise CommandError(f"{path} has no {names} file.")
    return files
