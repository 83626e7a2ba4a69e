"""Reads recorded runs and folds them. A trace file has one JSON object per line, one call each, sorted by session.

The management commands choose the files; `quality` compares verdicts with labels.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from detection.engine import fold
from detection.engine.calls import Call, Result, Verdict
from detection.engine.identity import Keyer
from detection.engine.policy import Policy
from detection.engine.results import as_text

Event = dict[str, Any]
SessionName = tuple[str, str]


class TraceError(ValueError):
    """A line of a trace file is not valid; the message names it."""


def read_lines(path: Path) -> Iterator[Event]:
    """Return the objects of a file, compressed with gzip or not.

    Raises
    ------
    TraceError
        For the first line that is no JSON object.
    OSError
        If the file cannot be read.
    """
    with _opened(path) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                event = orjson.loads(line)
            except ValueError as error:
                raise TraceError(f"{path}, line {number}: {error}") from None
            if not isinstance(event, dict):
                raise TraceError(f"{path}, line {number}: not an object")
            yield event


def _opened(path: Path) -> gzip.GzipFile | BinaryIO:
    with path.open("rb") as start:
        packed = start.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")


def sessions(events: Iterable[Event]) -> Iterator[tuple[SessionName, list[Event]]]:
    """Return events by session. The whole file is read, because the lines of a session may be apart."""
    keyed = sorted(events, key=lambda event: (*name_of(event), event.get("seq", 0)))
    for name, group in groupby(keyed, key=name_of):
        yield name, list(group)


def name_of(event: Event) -> SessionName:
    """Return source and session of an event or a label."""
    return str(event.get("source") or ""), str(event.get("session") or "")


@dataclass(frozen=True, slots=True)
class Judged:
    """A judged call of a run: the stricter of the verdicts before and after it, and the kinds of all findings."""

    index: int
    seq: int
    verdict: Verdict
    kinds: tuple[str, ...]


def fold_session(events: list[Event], policy: Policy, keyer: Keyer) -> Iterator[Judged]:
    """Fold a recorded run, call by call. The engine ignores the recorded results of blocked calls."""
    state = fold.new_state()
    for index, event in enumerate(events):
        call_id = f"{index}"
        at = _seconds(event.get("ts"), index)
        turn = event.get("turn")
        call = Call(
            seq=int(event.get("seq", index)),
            tool=str(event.get("tool") or ""),
            arguments=event.get("arguments"),
            at=at,
            call_id=call_id,
            round=None if turn is None else str(turn),
            run=None if event.get("run") is None else str(event["run"]),
        )
        verdicts = [fold.observe_call(state, call, policy, keyer).verdict]
        if event.get("result") is not None:
            result = Result(call_id, as_text(event["result"]), event.get("is_error"), at, call.seq)
            verdicts.append(fold.observe_result(state, result, policy, keyer).verdict)
        kinds = tuple(
            finding.kind
            for verdict in verdicts
            for finding in verdict.findings
            if not finding.detail.get("notice")
        )
        strictest = verdicts[0] if verdicts[0].decision != "allow" else verdicts[-1]
        yield Judged(index, call.seq, strictest, kinds)


def _seconds(stamp: Any, index: int) -> float:
    """Return the Unix seconds of an event; without times, a run makes one call per second."""
    if isinstance(stamp, int | float):
        return float(stamp)
    if isinstance(stamp, str):
        try:
            return datetime.fromisoformat(stamp).timestamp()
        except ValueError:
            pass
    return float(index)
