"""Reads recorded runs in the trace form and folds them. One JSON object a line, one call each, sorted by session.

Reading bytes from disk is the commands' business; how well the verdicts match labels belongs to `quality`.
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
    """A line is no event of the trace form; the message names the line."""


def read_lines(path: Path) -> Iterator[Event]:
    """The objects of a file, gzipped or not.

    Raises
    ------
    TraceError
        Naming the first line that is no JSON object.
    OSError
        When the file cannot be read.
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
    """Events by session. A session whose lines are apart is put together first, so the file is read whole."""
    keyed = sorted(events, key=lambda event: (*name_of(event), event.get("seq", 0)))
    for name, group in groupby(keyed, key=name_of):
        yield name, list(group)


def name_of(event: Event) -> SessionName:
    """(source, session) of an event or a label."""
    return str(event.get("source") or ""), str(event.get("session") or "")


@dataclass(frozen=True, slots=True)
class Judged:
    """One call of a run: the stronger of the verdicts before and after it, and whether anything was found."""

    index: int
    seq: int
    verdict: Verdict
    kinds: tuple[str, ...]


def fold_session(events: list[Event], policy: Policy, keyer: Keyer) -> Iterator[Judged]:
    """Fold one recorded run, call by call. A refused call still has its recorded result; the engine leaves it out."""
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
        strongest = verdicts[0] if verdicts[0].decision != "allow" else verdicts[-1]
        yield Judged(index, call.seq, strongest, kinds)


def _seconds(stamp: Any, index: int) -> float:
    """Unix seconds of an event; a run without times is taken to make one call a second."""
    if isinstance(stamp, int | float):
        return float(stamp)
    if isinstance(stamp, str):
        try:
            return datetime.fromisoformat(stamp).timestamp()
        except ValueError:
            pass
    return float(index)
