"""What a session remembers between two observations, bounded whatever its length.

A `State` holds the session, a `Lane` what is counted together (a run, or the whole session), a `Record` one call.
Detectors read lanes and keep their own small dictionary in `Lane.own`. How this becomes bytes belongs to `snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

MAX_LANES = 3
MIN_RECORDS = 32
MAX_RECORDS = 64
MAX_SEEN = 192
MAX_CALL_IDS = 256
MAX_TOTALS = 192
MAX_LOOPS = 16
MAX_EXEMPT = 32
MAX_NAME_CHARS = 96

PENDING, OK, ERROR, EMPTY = "p", "o", "e", "m"

REFUSED = frozenset(("block", "hold", "stop"))


@dataclass(slots=True)
class Record:
    """One counted call.

    `ordinal` counts calls of the lane from 1; `weight` is 1, or less for a slow repeat; `sketch` the word sketch of
    the arguments; `result` the short fingerprint of the answer; `spent` means that it is no evidence any more.
    """

    seq: int
    ordinal: int
    tool: str
    key: str
    at: float
    round: int
    call: int
    weight: float = 1.0
    status: str = PENDING
    result: str = ""
    new: bool | None = None
    change: bool = False
    spent: bool = False
    sketch: str = ""
    answer: tuple[Any, ...] | None = None

    @property
    def decision(self) -> str:
        """What the call was answered."""
        return self.answer[0] if self.answer else "allow"


@dataclass(slots=True)
class Marks:
    """A bounded set of 32-bit marks, oldest first.

    It stays packed, four bytes a mark: a session is stored and restored at every call, and asks for one or two of them.
    """

    packed: bytes = b""

    def __len__(self) -> int:
        return len(self.packed) // 4

    def find(self, mark: bytes) -> int:
        """Where in the bytes the mark stands, or -1."""
        place = self.packed.find(mark)
        # Bytes that span two marks may look like a third.
        while place % 4 and place > 0:
            place = self.packed.find(mark, place + 1)
        return place

    def add(self, mark: bytes, limit: int) -> None:
        """Put a mark at the end; the oldest one above the limit goes."""
        self.packed = (self.packed + mark)[-4 * limit :]

    def renew(self, place: int) -> None:
        """Move the mark at this place to the end, so that it is forgotten last."""
        packed = self.packed
        self.packed = packed[:place] + packed[place + 4 :] + packed[place : place + 4]


@dataclass(slots=True)
class Loop:
    """The way of one loop down its ladder."""

    kind: str
    keys: tuple[str, ...]
    level: int = 0
    ordinal: int = 0
    count: int = 0
    rung: str = ""


@dataclass(slots=True)
class Lane:
    """Everything that is counted together."""

    records: list[Record] = field(default_factory=list)
    ordinal: int = 0
    results: int = 0
    news: int = 0
    detections: int = 0
    loops: dict[str, Loop] = field(default_factory=dict)
    allowances: dict[str, int] = field(default_factory=dict)
    seen: Marks = field(default_factory=Marks)
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    warned: tuple[int, str] = (-(10**9), "")

    def recent(self, key: str, calls: int) -> Record | None:
        """The latest earlier record of this key among the last `calls`; the record in hand is not looked at."""
        records = self.records
        for index in range(len(records) - 2, max(-1, len(records) - 2 - calls), -1):
            if records[index].key == key:
                return records[index]
        return None

    def see(self, fingerprint: str) -> bool:
        """Remember a fingerprint; True when it is new. The oldest unused ones are forgotten."""
        mark = bytes.fromhex(fingerprint[:8])
        place = self.seen.find(mark)
        if place < 0:
            self.seen.add(mark, MAX_SEEN)
            return True
        self.seen.renew(place)
        return False

    def allowance(self, name: str) -> int:
        """Extra calls that a person granted to a loop or kind."""
        return self.allowances.get(name, 0) if self.allowances else 0

    def clear(self) -> None:
        """Forget everything but the count of calls and the fingerprints."""
        self.records.clear()
        self.detections = 0
        self.loops.clear()
        self.own.clear()
        self.warned = (-(10**9), "")

    def spend(self, keys: Iterable[str]) -> None:
        """Take the calls of these keys out of the evidence."""
        gone = set(keys)
        for record in self.records:
            if record.key in gone:
                record.spent = True


@dataclass(slots=True)
class State:
    """One session."""

    lanes: dict[str, Lane] = field(default_factory=dict)
    call_ids: Marks = field(default_factory=Marks)
    exempt: list[str] = field(default_factory=list)

    def lane(self, name: str) -> Lane:
        """The lane of this name, made if it is not there; the one used longest ago gives way."""
        if len(self.lanes) == 1 and name in self.lanes:
            return self.lanes[name]
        lane = self.lanes.pop(name, None) or Lane()
        self.lanes[name] = lane
        if len(self.lanes) > MAX_LANES:
            del self.lanes[next(iter(self.lanes))]
        return lane

    def find(self, mark: int) -> tuple[Lane, Record] | None:
        """The record of the call whose id has this mark (`short`), newest first."""
        for lane in reversed(self.lanes.values()):
            for record in reversed(lane.records):
                if record.call == mark:
                    return lane, record
        return None

    def first_time(self, mark: int) -> bool:
        """Whether the id with this mark (`short`) is new; it is remembered."""
        packed = mark.to_bytes(4)
        if self.call_ids.find(packed) >= 0:
            return False
        self.call_ids.add(packed, MAX_CALL_IDS)
        return True


def kept_name(text: str) -> str:
    """A tool's or run's name as it is remembered: valid text of bounded length; long ones end in a mark of the whole."""
    if len(text) <= MAX_NAME_CHARS and text.isascii():
        return text
    valid = text[:MAX_NAME_CHARS].encode("utf-8", "replace").decode()
    return valid if len(text) <= MAX_NAME_CHARS else f"{valid[:-9]}~{short(text):08x}"


def short(text: str) -> int:
    """A 32-bit mark of an id, never 0 for a text: 0 means "none"."""
    # Ids are nearly always plain, and an encoding that is asked for nothing special is quicker.
    return crc32(text.encode() if text.isascii() else text.encode("utf-8", "surrogatepass")) or 1


def bounded(table: dict[str, Any], limit: int) -> None:
    """Drop the oldest entries above the limit."""
    while len(table) > limit:
        del table[next(iter(table))]
