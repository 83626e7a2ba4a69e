"""What `repeat` remembers between two observations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from detection.engine.bounded import drop_oldest
from detection.engine.memory import Kept


@dataclass(slots=True)
class Likeness(Kept):
    """How many results in a row were nearly the same; see `nearly_same`.

    Attributes
    ----------
    words : str
        Keyed hashes of the words of the latest result, one character each.
    count : int
        Pairs of results in a row that are the same or nearly so, plus one.
    is_near : bool
        Whether two of them were nearly, but not quite, the same.
    """

    words: str
    count: int = 1
    is_near: bool = False


@dataclass(slots=True)
class Direction(Kept):
    """Where the figures of the results are going; see `changing`.

    Attributes
    ----------
    figures : list of int
        The first figures of the latest result.
    directions : list of int or None
        By place: 1 if the figure has only risen, -1 if it has only fallen, 0 if it never moved, 2 if it did both.
    rest : int
        Hash of the latest result without its figures, 0 of a long one.
    alike : int
        Results in a row whose rest was the same as before.
    """

    figures: list[int]
    directions: list[int] | None = None
    rest: int = 0
    alike: int = 0

    @property
    def is_steady(self) -> bool:
        """Whether a figure has only risen, or only fallen."""
        return self.directions is not None and any(one in (-1, 1) for one in self.directions)

    @property
    def only_counts(self) -> bool:
        """Whether figures only rise, and to none that stays."""
        pairs = [*zip(self.directions or (), self.figures, strict=False)]
        highest = max((figure for way, figure in pairs if way == 1), default=0)
        return all(way == 1 or (way == 0 and figure < highest) for way, figure in pairs)


@dataclass(slots=True)
class Streak(Kept):
    """Identical calls in a row.

    Attributes
    ----------
    key : str
        Of the calls; empty after a reset.
    after : int
        Results of calls up to this ordinal do not belong to the streak.
    calls : int
        All calls.
    series : int
        Those since the last changed result.
    count, paced : float
        The same two, with slow calls as a fifth: `count` since the last changed result, `paced` all.
    first : int
        Sequence number of the first call, -1 before it.
    since, at : float
        Times of the first and the latest call.
    result, status : str
        Of the latest result; empty before one.
    known, changes : int
        Results since the last change, and changes that were no errors.
    is_trouble : bool
        Whether the latest error was trouble of a provider.
    asked : int or None
        Calls since the user spoke after a success; None if nobody did.
    spoken : bool
        Whether the user spoke after the latest call, and that had succeeded.
    turns : int
        Turns in a row in which the call was made and had the same result.
    before : str
        Result of the call before the user spoke; empty if nobody did.
    moves_on : bool
        Whether the call scrolls or pages.
    times : list of float or None
        Of the calls that still count, where each ages by itself.
    receipt : int
        Hash of the latest receipt of a write with all its figures, 0 before one.
    made : int
        Receipts since the last changed result that say that something new was made.
    made_id : str
        The id that the latest receipt gives to it; empty without one.
    likeness, direction
        What the rules of these names know; None before they compared a result.
    """

    key: str
    after: int
    calls: int = 0
    series: int = 0
    count: float = 0.0
    paced: float = 0.0
    first: int = -1
    since: float = 0.0
    at: float = 0.0
    result: str = ""
    status: str = ""
    known: int = 0
    changes: int = 0
    is_trouble: bool = False
    asked: int | None = None
    spoken: bool = False
    turns: int = 1
    before: str = ""
    moves_on: bool = False
    times: list[float] | None = None
    receipt: int = 0
    made: int = 0
    made_id: str = ""
    likeness: Likeness | None = None
    direction: Direction | None = None

    @classmethod
    def of_row(cls, row: list[Any]) -> Streak:
        """Return the streak that was stored as this row."""
        kept: Any = cls(*row[: len(cls.__slots__)])
        kept.likeness = kept.likeness and Likeness.of_row(kept.likeness)
        kept.direction = kept.direction and Direction.of_row(kept.direction)
        streak: Streak = kept
        return streak


@dataclass(slots=True)
class RepeatState(Kept):
    """All that `repeat` remembers of a run.

    Attributes
    ----------
    streak : Streak or None
        The latest identical calls in a row.
    totals : dict
        Calls of the whole run by key, where `repeat_scope` is `run`.
    pairs : dict
        Calls since the user spoke by key and result.
    """

    streak: Streak | None = None
    totals: dict[str, int] = field(default_factory=dict)
    pairs: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_row(cls, row: list[Any]) -> RepeatState:
        """Return the state that was stored as this row."""
        streak, totals, pairs = row[: len(cls.__slots__)]
        return cls(None if streak is None else Streak.of_row(streak), totals, pairs)


def count(counts: dict[str, int], key: str, limit: int) -> int:
    """Count a key in a table that keeps the latest `limit` keys."""
    found = counts[key] = counts.pop(key, 0) + 1
    if len(counts) > limit:
        drop_oldest(counts, limit)
    return found
