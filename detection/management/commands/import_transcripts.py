"""``import_transcripts``: loads past runs of agents, and reports what loops cost in them."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.integrations.transcripts import TranscriptError
from detection.management.choices import chosen_project
from detection.models import Project
from detection.selectors.prices import load_prices
from detection.services.ingestion import run_import, transcript_files
from detection.services.ingestion.run_import import ImportSummary, priced
from detection.services.ingestion.transcript_files import ENDINGS, KINDS, MAX_UNPACKED_BYTES


class Command(BaseCommand):
    """Import files; importing them again adds only what is new."""

    help = "Load past agent runs as sessions, and report the calls and the money spent in loops."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("kind", choices=KINDS, help="format of the transcripts")
        parser.add_argument(
            "path", type=Path, help="a file, or a folder that is searched for .jsonl, .json and .zip files"
        )
        parser.add_argument("--project", metavar="SLUG", help="needed only if there are several projects")
        parser.add_argument(
            "--usd-per-million-tokens",
            nargs=2,
            type=float,
            metavar=("INPUT", "OUTPUT"),
            help="prices, for records that have tokens but no costs; the project's prices by default",
        )

    def handle(self, *_: object, **options: Any) -> None:
        """Import the files, then print the summary."""
        # What it finds is in the summary, and why it cannot connect in the error; more lines would bury them.
        logs = [logging.getLogger(name) for name in ("detection.services.sessions", "psycopg.pool")]
        before = [log.level for log in logs]
        for log in logs:
            log.setLevel(logging.ERROR)
        try:
            self._import(chosen_project(options["project"]), _files(options["path"]), options)
        finally:
            for log, level in zip(logs, before, strict=True):
                log.setLevel(level)

    def _import(self, project: Project, files: list[Path], options: dict[str, Any]) -> None:
        principal, totals, rows = run_import.importer(project), Counter[str](), set[int]()
        prices = load_prices(project.pk)
        for number, file in enumerate(files, 1):
            self._progress(number, len(files), file)
            try:
                for one in transcript_files.files_of(
                    file, str(file), [MAX_UNPACKED_BYTES], str(file.resolve())
                ):
                    runs = run_import.FileImport(principal, options["kind"])
                    try:
                        for name, event in transcript_files.events(options["kind"], one):
                            runs.add(name, priced(event, options["usd_per_million_tokens"], prices))
                    finally:
                        for run in runs.end():
                            totals.update(events=run.added, known=run.known, live=run.session_id is None)
                            rows.update([run.session_id] if run.session_id is not None else [])
            except (TranscriptError, OSError) as error:
                totals.update(unreadable=1)
                self.stderr.write(str(error))
        self._report(totals, run_import.summarise(project, rows))
        if totals["unreadable"]:
            raise CommandError(f"{totals['unreadable']} files could not be read. The reasons are above.")

    def _progress(self, number: int, count: int, file: Path) -> None:
        if self.stderr.isatty():
            done = 24 * number // count
            end = "\n" if number == count else ""
            self.stderr.write(f"\r[{'#' * done:<24}] {number} of {count} {file.name[:40]:<40}", ending=end)

    def _report(self, totals: Counter[str], summary: ImportSummary) -> None:
        write = self.stdout.write
        write(f"{summary.sessions:,} sessions, {summary.calls:,} calls. New events: {totals['events']:,}.")
        if totals["live"]:
            write(f"{totals['live']:,} sessions were recorded live and are not changed.")
        share = f" ({summary.loop_calls / summary.calls:.1%} of all)" if summary.calls else ""
        cost = f", ${summary.loop_cost_usd:,.2f}" if summary.loop_cost_usd else ""
        write(
            f"{summary.loops:,} loops in {summary.looping_sessions:,} sessions:"
            f" {summary.loop_calls:,} calls{share}{cost}."
        )
        if summary.loops and not cost:
            write(
                "Their cost is unknown, because they were imported without prices. To know it, erase these sessions and"
                " import them again with --usd-per-million-tokens INPUT OUTPUT, such as 3 15."
            )
        for loop in summary.worst:
            price = f", ${loop.cost_usd:,.2f}" if loop.cost_usd else ""
            write(f"  {loop.calls:>5,} calls{price}  {loop.tool}  {loop.session}\n         {loop.url}")
        write(summary.url)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(one for one in path.rglob("*") if one.is_file() and one.name.endswith((*ENDINGS, ".zip")))
    if not files:
        raise CommandError(f"{path} has no .jsonl or .json file.")
    return files
