"""The minimap of a run: at most a few hundred columns of consecutive calls, with marks, loops and a time axis.

A column contains one call, or several in a long run: the share of each repeated call in its colour, the rest grey.
Errors are marked below the column, and its strictest decision above. All x coordinates are in columns; the page
stretches them to its width.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median

from detection.engine import durations
from detection.models import call_flags
from detection.selectors.session_runs import CallRun
from detection.selectors.strips import Cell, look, outline_class

MAX_COLUMNS = 480
MAX_HUES_PER_COLUMN = 3
TICKS = 8
MAX_PAUSES, MIN_PAUSE_SECONDS, MIN_PAUSE_DISTANCE = 6, 30.0, 0.07
MAX_LOOP_LINES = 3
COLUMN_TOP, COLUMN_HEIGHT = 22, 40
"""Of the columns, in pixels."""
_FLOOR = COLUMN_TOP + COLUMN_HEIGHT
_TICK_HEIGHTS = {call_flags.WARNED: 4, call_flags.HELD: 7, call_flags.BLOCKED: 11, call_flags.STOPPED: 11}


@dataclass(frozen=True, slots=True)
class MappedLoop:
    """A loop of the run, from its first to its last call, and where a click on it leads."""

    first_seq: int
    last_seq: int
    title: str
    href: str


@dataclass(frozen=True, slots=True)
class LoopLine:
    """A loop below the columns."""

    path: str
    title: str
    href: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A time on the axis; a minor one is hidden where space is short."""

    x: str
    anchor: str
    at: datetime
    is_minor: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause between two calls, which takes no space."""

    x: str
    text: str
    anchor: str
    is_minor: bool


@dataclass(frozen=True, slots=True)
class Area:
    """A part of the map that leads to its calls."""

    x: str
    width: str
    href: str
    title: str


@dataclass(frozen=True, slots=True)
class SessionMap:
    """A laid-out map.

    Attributes
    ----------
    paths
        (class, path data) of columns and marks.
    view
        Left edge and width of the calls that the page shows in detail, in percent; None for all.
    """

    columns: int
    calls: int
    paths: tuple[tuple[str, str], ...]
    loops: tuple[LoopLine, ...]
    ticks: tuple[Tick, ...]
    pauses: tuple[Pause, ...]
    areas: tuple[Area, ...] = ()
    view: tuple[str, str] | None = None

    @property
    def spans_days(self) -> bool:
        """Whether the times on the axis need a date."""
        return bool(self.ticks) and self.ticks[-1].at - self.ticks[0].at > timedelta(hours=20)


@dataclass(slots=True)
class _Drawing:
    """SVG paths by class; adjacent columns that look the same are merged."""

    parts: dict[str, list[str]] = field(default_factory=dict)
    open: dict[tuple[str, int, int], list[int]] = field(default_factory=dict)

    def column(self, column: int, segments: Iterable[tuple[str, int, int]]) -> None:
        for segment in segments:
            run = self.open.get(segment)
            if run and run[1] == column:
                run[1] = column + 1
                continue
            if run:
                self._close(segment, run)
            self.open[segment] = [column, column + 1]

    def _close(self, segment: tuple[str, int, int], run: list[int]) -> None:
        name, top, height = segment
        self.add(name, f"M{run[0]} {top}h{run[1] - run[0]}v{height}H{run[0]}z")

    def add(self, name: str, path: str) -> None:
        self.parts.setdefault(name, []).append(path)

    def all(self) -> tuple[tuple[str, str], ...]:
        for segment, run in self.open.items():
            self._close(segment, run)
        self.open.clear()
        return tuple((name, "".join(parts)) for name, parts in self.parts.items())


def lay_out(
    run: CallRun,
    first: int,
    last: int,
    *,
    colours: Mapping[str, int],
    loops: Sequence[MappedLoop] = (),
    hits: Sequence[int] = (),
    unmarked: frozenset[int] = frozenset(),
) -> SessionMap:
    """Draw the calls of a run from place `first` up to before `last`, without the decisions of `unmarked` ones.

    Time is linear in the calls, the result bounded: `MAX_COLUMNS` columns with four shapes each at most.
    """
    cells = run.cells[first:last]
    columns = min(len(cells), MAX_COLUMNS)
    drawing = _Drawing()
    for column in range(columns):
        inside = cells[column * len(cells) // columns : (column + 1) * len(cells) // columns]
        drawing.column(column, _segments(inside, colours))
        mark = call_flags.outline("".join([cell.flags for cell in inside if cell.seq not in unmarked]))
        if mark:
            height = _TICK_HEIGHTS[mark.lower()]
            drawing.add(f"tick {outline_class(mark)}", f"M{column + 0.5} 20v-{height}")
        if call_flags.ERROR in "".join([cell.flags for cell in inside]):
            drawing.add("tick error", f"M{column + 0.5} {_FLOOR + 2}v4")
    seqs = run.seqs[first:last]
    for column in sorted(
        {_column(seqs, columns, seq) for seq in hits if seqs and seqs[0] <= seq <= seqs[-1]}
    ):
        drawing.add("tick hit", f"M{column + 0.5} 7v-6")
    at = run.received_at[first:last]
    return SessionMap(
        max(columns, 1),
        len(cells),
        drawing.all(),
        tuple(_loops(loops, seqs, columns)),
        tuple(_ticks(at)),
        tuple(_pauses(at)),
    )


def _segments(cells: Sequence[Cell], colours: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Yield (class, top, height) of a column from its floor up: calls without a new result first, grey last."""
    if len(cells) == 1:
        height = COLUMN_HEIGHT // 2 if cells[0].is_error else COLUMN_HEIGHT
        yield look(cells[0], colours), _FLOOR - height, height
        return
    counts = Counter([look(cell, colours) for cell in cells if cell.key in colours])
    floor = _FLOOR
    for name, count in sorted(counts.most_common(MAX_HUES_PER_COLUMN), key=lambda one: (one[0][0], -one[1])):
        height = min(floor - COLUMN_TOP, max(2, round(COLUMN_HEIGHT * count / len(cells))))
        floor -= height
        yield name, floor, height
    if floor > COLUMN_TOP:
        yield "u", COLUMN_TOP, floor - COLUMN_TOP


def _column(seqs: Sequence[int], columns: int, seq: int) -> int:
    return min(columns - 1, bisect_left(seqs, seq) * columns // len(seqs))


def _loops(loops: Sequence[MappedLoop], seqs: Sequence[int], columns: int) -> Iterator[LoopLine]:
    """Place each loop on the first line where it overlaps no earlier loop; the rest share the last line."""
    gap, shortest = columns / 300, columns / 200
    line_ends: list[float] = []
    for loop in loops:
        start, end = bisect_left(seqs, loop.first_seq), bisect_right(seqs, loop.last_seq)
        if start >= end:
            continue
        x, right = start * columns / len(seqs), end * columns / len(seqs)
        line = next((i for i, taken in enumerate(line_ends) if taken <= x), len(line_ends))
        line = min(line, MAX_LOOP_LINES - 1)
        # Stops short of the next loop, and is never too short to be seen and clicked.
        width = max(shortest, right - x - gap)
        x = min(x, columns - width)
        line_ends[line : line + 1] = [max(right, x + shortest + gap)]
        yield LoopLine(f"M{x:.2f} {_FLOOR + 11 + line * 6}h{width:.2f}", loop.title, loop.href)


def _ticks(at: Sequence[float]) -> Iterator[Tick]:
    if not at:
        return
    count = min(TICKS, len(at) - 1)
    shown = None
    for place in range(count + 1):
        share = place / count if count else 0.0
        anchor = "start" if not place else "end" if place == count else "middle"
        moment = at[min(len(at) - 1, round(share * (len(at) - 1)))]
        if int(moment) == shown:  # times are shown to the second
            continue
        shown = int(moment)
        yield Tick(
            _percent(share),
            anchor,
            datetime.fromtimestamp(moment, UTC),
            place % 4 != 0 if count == TICKS else 0 < place < count,
        )


def _pauses(at: Sequence[float]) -> Iterator[Pause]:
    """Yield the longest pauses that are far enough apart to be labelled."""
    steps = [after - before for before, after in pairwise(at)]
    if not steps:
        return
    limit = max(MIN_PAUSE_SECONDS, 12 * median(steps))
    longest = sorted(
        (place for place, step in enumerate(steps) if step > limit), key=lambda place: -steps[place]
    )
    chosen: list[float] = []
    for place in longest[:100]:
        share = (place + 1) / len(at)
        if len(chosen) < MAX_PAUSES and all(abs(share - other) >= MIN_PAUSE_DISTANCE for other in chosen):
            chosen.append(share)
            anchor = "start" if share < 0.05 else "end" if share > 0.95 else "middle"
            yield Pause(_percent(share), durations.span(steps[place], is_short=True), anchor, len(chosen) > 2)


def percents(first: int, last: int, count: int) -> tuple[str, str]:
    """Return left edge and width of the calls from place `first` to before `last`, of `count`."""
    return _percent(first / count), _percent((last - first) / count)


def _percent(share: float) -> str:
    return f"{share * 100:.2f}%"
