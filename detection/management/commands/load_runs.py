"""``load_runs``: posts recorded runs through the API; workers evaluate them."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.integrations.events import ReportedEvent
from detection.integrations.recorded_runs import TraceError, read_lines
from detection.integrations.traces import Line, events_of, responses

MAX_BATCH_EVENTS = 500
MAX_BATCH_BYTES = 1_000_000
OUTAGE_TRIES = 8


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise ArgumentTypeError("must be a number, 1 or more")
    return int(text)


class Command(BaseCommand):
    """Post files in the trace form; posting them again adds nothing."""

    help = "Post recorded runs (trace form, gzipped or not) as events of sessions named source/session."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "files", nargs="+", type=Path, metavar="EVENTS.jsonl", help="one call per line; may be gzipped"
        )
        parser.add_argument(
            "--url", required=True, help="address of LoopGuard, such as http://127.0.0.1:8300"
        )
        parser.add_argument("--key", required=True, help="API key with the scope ingest")
        parser.add_argument(
            "--sessions", type=_positive, metavar="N", help="only the first N sessions of each file"
        )

    def handle(self, *_: object, **options: Any) -> None:
        """Post the files."""
        headers = {"Authorization": f"Bearer {options['key']}", "Content-Type": "application/json"}
        total: Counter[str] = Counter()
        try:
            with httpx.Client(base_url=options["url"].rstrip("/"), headers=headers, timeout=30) as client:
                for file in options["files"]:
                    counts = self._load(client, file, options["sessions"])
                    total.update(counts)
                    self.stdout.write(f"{file.name}: {_in_words(counts)}")
        except (TraceError, OSError) as error:
            raise CommandError(str(error)) from error
        except httpx.HTTPError as error:
            raise CommandError(f"LoopGuard at {options['url']} did not accept the events: {error}") from error
        if len(options["files"]) > 1:
            self.stdout.write(f"Total: {_in_words(total)}")
        if total["rejected"]:
            raise CommandError(f"{total['rejected']} events were rejected. The first reasons are above.")

    def _load(self, client: httpx.Client, file: Path, limit: int | None) -> Counter[str]:
        counts: Counter[str] = Counter()
        names: set[str] = set()
        for batch in batches(
            event
            for response in responses(first_sessions(read_lines(file), limit))
            for event in events_of(response)
        ):
            names.update(event["session"] for event in batch)
            answer = _post(client, batch)
            counts.update(
                accepted=answer["accepted"],
                duplicate=answer["duplicate"],
                altered=len(answer["altered"]),
                rejected=len(answer["rejected"]),
            )
            for rejection in answer["rejected"][:3]:
                name = batch[rejection["index"]]["session"]
                self.stderr.write(f"{name}: {rejection['code']} at {rejection['path']}: {rejection['hint']}")
        counts["sessions"] = len(names)
        return counts


def first_sessions(lines: Iterable[Line], limit: int | None) -> Iterator[Line]:
    """Yield the lines of the first `limit` sessions; all of them when it is None."""
    chosen: set[tuple[Any, Any]] = set()
    for line in lines:
        name = (line.get("source"), line.get("session"))
        if limit is None or name in chosen or len(chosen) < limit:
            chosen.add(name)
            yield line


def batches(events: Iterable[ReportedEvent]) -> Iterator[list[ReportedEvent]]:
    """Split the events into requests of limited count and size."""
    batch: list[ReportedEvent] = []
    size = 0
    for event in events:
        length = len(orjson.dumps(event))
        if batch and (len(batch) >= MAX_BATCH_EVENTS or size + length > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += length
    if batch:
        yield batch


def _post(client: httpx.Client, batch: list[ReportedEvent]) -> dict[str, Any]:
    """Post one batch; retry after the time that the server names. A repeated event counts once."""
    body = orjson.dumps({"events": batch})
    for attempt in range(OUTAGE_TRIES):
        try:
            answer = client.post("/api/v1/events", content=body)
        except httpx.TransportError:
            if attempt == OUTAGE_TRIES - 1:
                raise
            time.sleep(min(8.0, 0.25 * 2**attempt))
            continue
        if answer.status_code in (429, 503) and attempt < OUTAGE_TRIES - 1:
            time.sleep(min(30.0, float(answer.headers.get("Retry-After", "1"))))
            continue
        if answer.is_error:
            detail = (
                answer.json().get("detail", "") if "json" in answer.headers.get("Content-Type", "") else ""
            )
            raise httpx.HTTPStatusError(
                f"{answer.status_code} {detail}", request=answer.request, response=answer
            )
        return dict(answer.json())
    raise AssertionError("the last attempt returns or raises")


def _in_words(counts: Counter[str]) -> str:
    text = f"{counts['sessions']} sessions, {counts['accepted']} events accepted, {counts['duplicate']} duplicate"
    more = [f"{counts[name]} {name}" for name in ("altered", "rejected") if counts[name]]
    return ", ".join((text, *more))
