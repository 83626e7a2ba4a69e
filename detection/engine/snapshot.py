"""A session's state as bytes and back: compact JSON, versioned, bounded.

What is remembered belongs to `memory`. An unknown version is refused; the services then rebuild the state from the
stored calls.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import fields
from itertools import starmap
from operator import attrgetter
from typing import Any

import orjson

from detection.engine.memory import Lane, Loop, Marks, Record, State

VERSION = 2

MAX_BYTES = 32 * 1024

# Records and loops are stored as their fields, in order.
_RECORD_FIELDS = attrgetter(*(one.name for one in fields(Record)))
_LOOP_FIELDS = attrgetter(*(one.name for one in fields(Loop)))


class SnapshotVersionError(ValueError):
    """The bytes were written by another version of the engine, or are no snapshot."""


def dump(state: State) -> bytes:
    """The state as bytes; at most 32 KB at any length of the session.

    A state that has grown beyond the promise (many lanes full of long sketches) gives up its oldest lane, then its
    oldest records: both are what would be forgotten next.
    """
    body = _dump(state)
    while len(body) > MAX_BYTES and (
        len(state.lanes) > 1 or any(lane.records for lane in state.lanes.values())
    ):
        if len(state.lanes) > 1:
            del state.lanes[next(iter(state.lanes))]
        else:
            for lane in state.lanes.values():
                del lane.records[: max(1, len(lane.records) // 4)]
        body = _dump(state)
    if len(body) > MAX_BYTES:
        # Only texts made of control characters come this far; what detectors noted is given up last.
        for lane in state.lanes.values():
            lane.own.clear()
        body = _dump(state)
    return body


def load(data: bytes) -> State:
    """The state from bytes.

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
        lanes={name: _lane(packed) for name, packed in body["l"].items()},
        call_ids=_unpack(body["c"]),
        exempt=body["x"],
    )


def _dump(state: State) -> bytes:
    return orjson.dumps(
        {
            "v": VERSION,
            "c": _pack(state.call_ids),
            "x": state.exempt,
            "l": {name: _pack_lane(lane) for name, lane in state.lanes.items()},
        }
    )


def _pack_lane(lane: Lane) -> list[Any]:
    return [
        lane.ordinal,
        lane.results,
        lane.news,
        lane.detections,
        _pack(lane.seen),
        lane.own,
        {name: _LOOP_FIELDS(loop) for name, loop in lane.loops.items()},
        lane.allowances,
        lane.warned,
        list(map(_RECORD_FIELDS, lane.records)),
    ]


def _lane(packed: list[Any]) -> Lane:
    ordinal, results, news, detections, seen, own, loops, allowances, warned, records = packed
    return Lane(
        records=_records(records),
        ordinal=ordinal,
        results=results,
        news=news,
        detections=detections,
        loops={name: Loop(row[0], tuple(row[1]), *row[2:]) for name, row in loops.items()},
        allowances=allowances,
        seen=_unpack(seen),
        own=own,
        warned=(warned[0], warned[1]),
    )


def _records(rows: list[list[Any]]) -> list[Record]:
    for row in rows:
        if row[-1] is not None:
            row[-1] = tuple(row[-1])
    return list(starmap(Record, rows))


def _pack(marks: Marks) -> str:
    return b64encode(marks.packed).decode()


def _unpack(text: str) -> Marks:
    return Marks(b64decode(text))
