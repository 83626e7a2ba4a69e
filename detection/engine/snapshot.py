"""A session's state as bytes and back: compact, versioned JSON of bounded size.

Loading another version raises an error; the services then rebuild the state from the stored calls.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import fields
from itertools import starmap
from operator import attrgetter
from typing import Any

import orjson

from detection.engine.bounded import RecentHashes
from detection.engine.detectors import DETECTORS
from detection.engine.memory import Kept, KeptReaction, LadderProgress, Record, RunState, State

# Counts the forms of the state; a state of another version is rebuilt from its events. It stays as it is when fields
# with a default are added at the end of what is stored: this version reads what the next one writes, and the other way
# round, while both run. docs/releasing.md says how any other change is made.
VERSION = 15

MAX_BYTES = 32 * 1024
"""Size of the largest state."""
# Of the calls of a state that is too large, a quarter is forgotten at a time: few rounds, and most calls stay.
_FORGOTTEN_AT_ONCE = 4

# What detectors remember, where it is no dictionary.
_KEPT_TYPES = tuple((one.kind, one.own_type) for one in DETECTORS if issubclass(one.own_type, Kept))
_SHAPES: dict[type, tuple[Callable[[object], Any], list[Any]]] = {}
# Records and loops are stored as their fields, in order, and so is whatever is `Kept`.
_RECORD_FIELDS = attrgetter(*(one.name for one in fields(Record)))
_LOOP_FIELDS = attrgetter(*(one.name for one in fields(LadderProgress)))
_RECORD_LENGTH, _LOOP_LENGTH = len(fields(Record)), len(fields(LadderProgress))
_REACTION = [one.name for one in fields(Record)].index("reaction")
_RUN_LENGTH = 13  # the values that `_pack_run` writes


class SnapshotVersionError(ValueError):
    """The bytes were written by another version of the engine, or are damaged."""


def dump(state: State) -> bytes:
    """Return the state as bytes, at most `MAX_BYTES` whatever the length of the session.

    A larger state (several runs full of long sketches) loses its oldest runs first, then its oldest calls. It is
    changed in place.
    """
    body = _dump(state)
    while len(body) > MAX_BYTES and (len(state.runs) > 1 or any(run.records for run in state.runs.values())):
        if len(state.runs) > 1:
            del state.runs[next(iter(state.runs))]
        else:
            for run in state.runs.values():
                del run.records[: max(1, len(run.records) // _FORGOTTEN_AT_ONCE)]
        body = _dump(state)
    if len(body) > MAX_BYTES:
        # Only results made of control characters, which JSON escapes, lead here.
        for run in state.runs.values():
            run.detectors.clear()
        body = _dump(state)
    return body


def load(data: bytes) -> State:
    """Return the state from bytes.

    Raises
    ------
    SnapshotVersionError
        When the version is unknown or the bytes are damaged.
    """
    try:
        body = orjson.loads(data)
        version = body["v"]
        state = _state(body) if version == VERSION else None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise SnapshotVersionError(f"not a snapshot: {type(error).__name__}") from error
    if state is None:
        raise SnapshotVersionError(f"version {version!r}")
    return state


def _state(body: dict[str, Any]) -> State:
    return State(
        runs={name: _run(packed) for name, packed in body["r"].items()},
        whole=_run(body["w"]),
        round_calls=_unpack(body["c"]),
        open_calls=_unpack(body["o"]),
        uncounted=body["u"],
        exempt=body["x"],
    )


def packed(part: object) -> bytes:
    """Return a part of a state as it is stored."""
    return orjson.dumps(part, default=_row, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def _row(part: Any) -> list[Any]:
    """Return the fields of a part, in order, without those at the end that have their defaults."""
    shape = _SHAPES.get(type(part))
    if shape is None:
        named = fields(part)
        shape = attrgetter(*(one.name for one in named)), [one.default for one in named]
        _SHAPES[type(part)] = shape
    values_of, defaults = shape
    row = [*values_of(part)]
    while row and row[-1] == defaults[len(row) - 1]:
        row.pop()
    return row


def _dump(state: State) -> bytes:
    return packed(
        {
            "v": VERSION,
            "c": _pack(state.round_calls),
            "o": _pack(state.open_calls),
            "u": state.uncounted,
            "x": state.exempt,
            "w": _pack_run(state.whole),
            "r": {name: _pack_run(run) for name, run in state.runs.items()},
        }
    )


def _pack_run(run: RunState) -> list[Any]:
    return [
        run.ordinal,
        run.results,
        run.new_results,
        run.detections,
        run.epoch,
        _pack(run.seen),
        run.detectors,
        {name: _LOOP_FIELDS(loop) for name, loop in run.loops.items()},
        run.allowances,
        run.warned,
        run.round,
        run.limits,
        list(map(_RECORD_FIELDS, run.records)),
    ]


def _run(packed: list[Any]) -> RunState:
    (ordinal, results, new_results, detections, epoch, *rest) = packed[:_RUN_LENGTH]
    seen, detectors, loops, allowances, warned, latest_round, limits, records = rest
    for kind, own_type in _KEPT_TYPES:
        if kind in detectors:
            detectors[kind] = own_type.of_row(detectors[kind])
    return RunState(
        records=_records(records),
        ordinal=ordinal,
        results=results,
        new_results=new_results,
        detections=detections,
        epoch=epoch,
        loops={
            name: LadderProgress(row[0], tuple(row[1]), *row[2:_LOOP_LENGTH]) for name, row in loops.items()
        },
        allowances=allowances,
        seen=_unpack(seen),
        detectors=detectors,
        warned=(warned[0], warned[1]),
        round=(latest_round[0], latest_round[1], latest_round[2]),
        limits=limits,
    )


def _records(rows: list[list[Any]]) -> list[Record]:
    for row in rows:
        if row[_REACTION] is not None:
            row[_REACTION] = KeptReaction.of_row(row[_REACTION])
        del row[_RECORD_LENGTH:]
    return list(starmap(Record, rows))


def _pack(hashes: RecentHashes) -> str:
    return b64encode(hashes.packed).decode()


def _unpack(text: str) -> RecentHashes:
    return RecentHashes(b64decode(text))
