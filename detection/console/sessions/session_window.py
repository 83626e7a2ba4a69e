"""The window of calls that a session's page shows in detail, from its address, and the targets of its buttons."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from django.http import QueryDict

from detection.selectors.session_runs import MAX_RUN_CALLS, CallRun

DEFAULT_CALLS, MIN_CALLS = 100, 10
WHOLE_RUN_CALLS = 200
"""Runs of up to this many calls are shown in full."""
ZOOM_CALLS = (25, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)
LOOP_CONTEXT_CALLS = 10


def number(text: str | None, default: int, allowed: Sequence[int] = ()) -> int:
    """Return a number from a query string, or the default for anything else."""
    found = int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else default
    return found if not allowed or found in allowed else default


@dataclass(frozen=True, slots=True)
class Window:
    """The calls from place `first` up to before `last`, of a run of `total`.

    Attributes
    ----------
    follows
        Whether the window stays at the newest calls.
    """

    first: int
    last: int
    total: int
    follows: bool

    @property
    def size(self) -> int:
        """How many calls it shows."""
        return self.last - self.first


def window_of(query: QueryDict, run: CallRun, chosen: int) -> Window:
    """Return the window that an address names: `from` (number of a call) and `calls`, or `before` (a sequence number).

    Without them, the window has the newest calls, or those around the selected call if it is not one of the newest.
    """
    total = len(run.cells)
    usual = total if total <= WHOLE_RUN_CALLS else DEFAULT_CALLS
    size = min(total, max(MIN_CALLS, number(query.get("calls"), usual)))
    newest = max(0, total - size)
    seqs, start = run.seqs, number(query.get("from"), 0)
    if start:
        first = bisect_left(run.cells, start, key=lambda cell: cell.number)
    elif before := number(query.get("before"), 0):
        first = bisect_left(seqs, before) - size
    elif chosen and seqs and chosen < seqs[newest]:
        first = bisect_left(seqs, chosen) - size // 2
    else:
        return Window(newest, total, total, True)
    first = min(max(0, first), newest)
    return Window(first, first + size, total, False)


def rows_of(window: Window, run: CallRun, chosen_seq: int, most: int) -> tuple[int, int]:
    """Return the positions of the calls in a table of at most `most` rows.

    Those around the selected call, otherwise the newest of a window that follows the session, otherwise the first.
    """
    if window.size <= most:
        return window.first, window.last
    place = bisect_left(run.seqs, chosen_seq) if chosen_seq else -1
    if window.first <= place < window.last:
        first = min(max(window.first, place - most // 2), window.last - most)
    else:
        first = window.last - most if window.follows else window.first
    return first, first + most


@dataclass(frozen=True, slots=True)
class Move:
    """A target window: the number of its first call, or None to follow the newest calls, and its size."""

    start: int | None
    calls: int


def moves(window: Window, run: CallRun) -> dict[str, Move | None]:
    """Return the target windows of the buttons: earlier, later, in, out, all; None for disabled ones."""
    size, total = window.size, window.total

    def shown(first: int, calls: int) -> Move:
        first = min(max(0, first), total - calls)
        return Move(run.cells[first].number, calls)

    def zoomed(calls: int) -> Move:
        # All calls include later ones, and what follows the session continues to.
        if calls >= total:
            return Move(None, MAX_RUN_CALLS)
        return Move(None, calls) if window.follows else shown(window.first + (size - calls) // 2, calls)

    inner = next((one for one in reversed(ZOOM_CALLS) if one < size), None)
    return {
        "earlier": shown(window.first - size, size) if window.first else None,
        "later": shown(window.last, size) if window.last < total else None,
        "in": zoomed(inner) if inner else None,
        "out": zoomed(next((one for one in ZOOM_CALLS if one > size), total)) if size < total else None,
        "all": zoomed(total) if size < total else None,
    }


def at_loop(run: CallRun, first_seq: int, last_seq: int) -> Move:
    """Return the window that shows a loop and some calls before and after it."""
    seqs = run.seqs
    first, last = bisect_left(seqs, first_seq), bisect_left(seqs, last_seq + 1)
    needed = last - first + 2 * LOOP_CONTEXT_CALLS
    size = min(len(seqs), next((one for one in ZOOM_CALLS[1:] if one >= needed), needed))
    first = min(max(0, first - LOOP_CONTEXT_CALLS), len(seqs) - size)
    return Move(run.cells[first].number, size)
