"""Reads recorded runs and folds them. A trace file has one JSON object per line, one call each, sorted by session.

The management commands choose the files.
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
from detection.engine.calls import Call, Message, Result, Verdict
from detection.engine.identity import Keyer
from detection.engine.policy import Policy
from detection.engine.results import as_text
from detection.integrations.traces import Line, SessionName, name_of, responses


class TraceError(ValueError):
    """A line of a trace file is not valid; the message names it."""


def read_lines(path: Path) -> Iterator[Line]:
    """Return the objects of a file, compressed with gzip or not.

    Raises
    ------
    TraceError
        For the first line that is not a JSON object.
    OSError
        If the file cannot be read.
    """
    with opened(path) as lines:
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


def opened(path: Path) -> gzip.GzipFile | BinaryIO:
    """Open a file for reading, compressed with gzip or not."""
    with path.open("rb") as start:
        packed = start.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")


def sessions(events: Iterable[Line]) -> Iterator[tuple[SessionName, list[Line]]]:
    """Return events by session. The whole file is read, because the lines of a session may be apart."""
    keyed = sorted(events, key=lambda event: (*name_of(event), event.get("seq", 0)))
    for name, group in groupby(keyed, key=name_of):
        yield name, list(group)


@dataclass(frozen=True, slots=True)
class Judged:
    """A judged call of a run: the stricter of the verdicts before and after it, and the kinds of all findings."""

    index: int
    seq: int
    verdict: Verdict
    kinds: tuple[str, ...]


def fold_session(events: list[Line], policy: Policy, keyer: Keyer) -> Iterator[Judged]:
    """Fold a recorded run, call by call. The engine ignores the recorded results of blocked calls.

    The calls of one response are folded before any of their results. `user_before` is a message of the user.
    """
    state = fold.new_state()
    index = 0
    for response in responses(events):
        judged: list[tuple[Line, Call, Verdict]] = []
        for event in response:
            call = _call(event, index)
            index += 1
            if event.get("user_before"):
                fold.observe(state, Message(call.at, "user", call.seq), policy, keyer)
            judged.append((event, call, fold.observe(state, call, policy, keyer).verdict))
        for position, (event, call, verdict) in enumerate(judged, index - len(judged)):
            verdicts = [verdict]
            if event.get("result") is not None:
                result = Result(
                    call.call_id, as_text(event["result"]), event.get("is_error"), call.at, call.seq
                )
                verdicts.append(fold.observe(state, result, policy, keyer).verdict)
            kinds = tuple(
                finding.kind
                for one in verdicts
                for finding in one.findings
                if not finding.detail.get("notice")
            )
            strictest = verdict if verdict.decision != "allow" else verdicts[-1]
            yield Judged(position, call.seq, strictest, kinds)


def _call(event: Line, index: int) -> Call:
    turn = event.get("turn")
    return Call(
        seq=int(event.get("seq", index)),
        tool=str(event.get("tool") or ""),
        arguments=event.get("arguments"),
        at=_seconds(event.get("ts"), index),
        call_id=f"{index}",
        round=None if turn is None else str(turn),
        run=None if event.get("run") is None else str(event["run"]),
        cwd=str(event.get("cwd") or ""),
    )


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
