"""``import_transcripts``: loads past runs of agents, and tells what loops have cost in them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError

from detection.integrations.session_names import bounded, session_name
from detection.integrations.transcripts import (
    MESSAGE_SHAPES,
    TranscriptError,
    claude_code_events,
    message_events,
)
from detection.management.commands.load_runs import events_of
from detection.measuring.traces import opened, read_lines, responses
from detection.models import Project
from detection.services.ingestion import run_import
from detection.services.ingestion.run_import import ImportSummary

KINDS = ("claude-code", *MESSAGE_SHAPES, "trace")
ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
"""A message list that is one document has to fit into memory; a larger one is an error."""
Event = dict[str, Any]


class Command(BaseCommand):
    """Import files; importing them again adds only what is new."""

    help = "Load past agent runs as sessions, and report the calls and the money spent in loops."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("kind", choices=KINDS, help="form of the record")
        parser.add_argument(
            "path", type=Path, help="a file, or a folder that is searched for .jsonl and .json files"
        )
        parser.add_argument("--project", metavar="SLUG", help="needed only if there are several projects")
        parser.add_argument(
            "--usd-per-million-tokens",
            nargs=2,
            type=float,
            metavar=("INPUT", "OUTPUT"),
            help="prices, for records that have tokens but no costs",
        )

    def handle(self, *_: object, **options: Any) -> None:
        """Import the files, then print the summary."""
        try:
            project = _project(options["project"])
        except OperationalError as error:
            raise CommandError(
                f"The database does not answer: start LoopGuard first, with `up` in another terminal. {error}"
            ) from None
        files = _files(options["path"])
        # What it finds is in the summary; a warning for each finding would bury that.
        log = logging.getLogger("detection.services.sessions")
        before = log.level
        log.setLevel(logging.ERROR)
        try:
            self._import(project, files, options)
        finally:
            log.setLevel(before)

    def _import(self, project: Project, files: list[Path], options: dict[str, Any]) -> None:
        principal, totals, rows = run_import.importer(project), Counter[str](), set[int]()
        for number, file in enumerate(files, 1):
            self._progress(number, len(files), file)
            try:
                for name, events in _sessions(options["kind"], file):
                    priced = _priced(events, options["usd_per_million_tokens"])
                    run = run_import.import_run(principal, options["kind"], name, priced)
                    totals.update(events=run.added, known=run.known, live=run.session_id is None)
                    rows.update([run.session_id] if run.session_id is not None else [])
            except (TranscriptError, OSError, ValueError) as error:
                totals.update(unreadable=1)
                self.stderr.write(f"{file}: {error}")
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
            write(f"{totals['live']:,} sessions were recorded live and are left as they are.")
        share = f" ({summary.loop_calls / summary.calls:.1%} of all)" if summary.calls else ""
        cost = f", ${summary.loop_cost_usd:,.2f}" if summary.loop_cost_usd else ""
        write(
            f"{summary.loops:,} loops in {summary.looping_sessions:,} sessions:"
            f" {summary.loop_calls:,} calls{share}{cost}."
        )
        if summary.loops and not cost:
            write("For their price, add --usd-per-million-tokens INPUT OUTPUT, such as 3 15.")
        for loop in summary.worst:
            price = f", ${loop.cost_usd:,.2f}" if loop.cost_usd else ""
            write(f"  {loop.calls:>5,} calls{price}  {loop.tool}  {loop.session}\n         {loop.url}")
        write(summary.url)


def _project(slug: str | None) -> Project:
    found = list(Project.objects.filter(slug=slug) if slug else Project.objects.all()[:2])
    if len(found) != 1:
        slugs = ", ".join(Project.objects.values_list("slug", flat=True)[:20])
        raise CommandError(f"Name a project with --project: {slugs or 'there is none yet'}.")
    return found[0]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(one for one in path.rglob("*") if one.is_file() and one.name.endswith(ENDINGS))
    if not files:
        raise CommandError(f"{path} has no .jsonl or .json file.")
    return files


def _sessions(kind: str, file: Path) -> Iterator[tuple[str, Iterable[Event]]]:
    """Yield the sessions of a file with their events, which are read as they are needed."""
    if kind == "trace":
        recorded = (event for response in responses(read_lines(file)) for event in events_of(response))
        for name, events in groupby(recorded, key=itemgetter("session")):
            yield bounded(name), events
    elif kind == "claude-code":
        # Sub-agents may write into the file of their parent; each pass takes one of the sessions.
        for name in dict.fromkeys(event["session"] for event in _claude_code(file)):
            yield name, (event for event in _claude_code(file) if event["session"] == name)
    else:
        for number, messages in enumerate(_lists(file)):
            name = session_name("", program=kind, place=f"{file.resolve()} {number}")
            yield name, message_events(messages, MESSAGE_SHAPES[MESSAGE_SHAPES.index(kind)], name)


def _claude_code(file: Path) -> Iterator[Event]:
    with opened(file) as lines:
        yield from claude_code_events(lines)


def _lists(file: Path) -> Iterator[Any]:
    """Yield the message lists of a file: of one document, or of one a line."""
    if ".jsonl" in file.name:
        with opened(file) as lines:
            yield from (_list_of(orjson.loads(line)) for line in lines if line.strip())
    else:
        with opened(file) as document:
            yield _list_of(orjson.loads(document.read(MAX_DOCUMENT_BYTES)))


def _list_of(document: Any) -> Any:
    if isinstance(document, dict):
        return document.get("messages", document.get("input", document))
    return document


def _priced(events: Iterable[Event], prices: list[float] | None) -> Iterator[Event]:
    """Add the cost of responses whose record has only tokens."""
    for event in events:
        usage = event.get("usage")
        if prices and usage and usage.get("cost_usd") is None:
            cost = usage["input_tokens"] * prices[0] + usage["output_tokens"] * prices[1]
            event = event | {"usage": usage | {"cost_usd": cost / 1_000_000}}
        yield event
