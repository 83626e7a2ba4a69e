"""The loop strip: one cell per call, colour means repetition.

A call key seen once is grey; a repeated one has a hue of its own, pale while its results are new, full without a new
result. A short cell is an error, a hollow one did not run. A dot above stands for a warning, or for what the guard
would have done about a call that was only reported; a bar after a call stands for a stop. This module lays the cells
out; templates and `strip_images` only write paths, so that a strip of sixty calls weighs about a kilobyte.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from detection.models import call_flags

HUES = 12
"""Hues of repeated calls; red, pink and amber are reserved for errors, blocks and warnings."""
TOP = 5.0
"""Space above the cells for dots."""
CELL_HEIGHT = 44.0
"""Of a cell of the large strip."""
_MEANINGS = {
    "n": "hollow: did not run",
    "o": "hollow: did not run",
    "dot": "dot: warned, or the guard would have reacted",
    "end": "bar: stopped",
}


class Cell(NamedTuple):
    """One call of a session, the `number`-th; `flags` as stored, see `call_flags`.

    A tuple, because a page creates one for each of up to 50,000 calls.
    """

    seq: int
    key: str
    flags: str = ""
    tool: str = ""
    number: int = 0

    @property
    def outline(self) -> str:
        """The strictest flag of its decision, or nothing."""
        return call_flags.outline(self.flags)

    @property
    def is_error(self) -> bool:
        """Whether its result was an error."""
        return call_flags.ERROR in self.flags

    @property
    def is_new(self) -> bool:
        """Whether its result brought something new."""
        return call_flags.NEW in self.flags


@dataclass(frozen=True, slots=True)
class Placed:
    """A positioned cell, for strips whose cells have tooltips and links."""

    cell: Cell
    x: float
    y: float
    height: float
    look: str
    title: str


@dataclass(frozen=True, slots=True)
class Bracket:
    """A loop below the strip."""

    path: str
    line: int
    label_x: float
    label_y: float
    anchor: str
    label: str
    href: str


@dataclass(frozen=True, slots=True)
class Strip:
    """A laid-out strip.

    Attributes
    ----------
    paths
        (class, path data) of everything that has one look.
    cells
        Single cells, for the large strip only.
    """

    width: float
    height: float
    label: str
    paths: tuple[tuple[str, str], ...] = ()
    cells: tuple[Placed, ...] = ()
    brackets: tuple[Bracket, ...] = ()
    cell_width: float = 4

    @property
    def key(self) -> str:
        """What the marks of a small strip mean; empty for one without marks."""
        looks = [look.partition(" ")[0] for look, _ in self.paths]
        return "; ".join(dict.fromkeys(_MEANINGS[look] for look in looks if look in _MEANINGS))

    @property
    def radius(self) -> float:
        """Radius of the corners of the cells."""
        return min(3.0, self.cell_width / 3)


@dataclass(slots=True)
class _Paths:
    by_look: dict[str, list[str]] = field(default_factory=dict)

    def add(self, look: str, path: str) -> None:
        self.by_look.setdefault(look, []).append(path)

    def all(self) -> tuple[tuple[str, str], ...]:
        return tuple((look, "".join(parts)) for look, parts in self.by_look.items())


def cells_of(stored: Iterable[Sequence[Any]]) -> list[Cell]:
    """Return the cells of `Session.strip`."""
    return [Cell(row[0], row[1], row[2], "", row[3]) for row in stored]


def hues(keys: Iterable[str]) -> dict[str, int]:
    """Assign a hue to every repeated key.

    The hue follows from the key, so that a loop keeps its colour while the strip moves on and on every page; where two
    keys want the same one, the later takes the next that is free.
    """
    counts = Counter(key for key in keys if key)
    chosen: dict[str, int] = {}
    taken: set[int] = set()
    for key, count in counts.items():
        if count < 2:
            continue
        hue = int(key[:6], 16) % HUES if _is_hex(key[:6]) else sum(map(ord, key)) % HUES
        for step in range(HUES):
            if (hue + step) % HUES not in taken:
                hue = (hue + step) % HUES
                break
        taken.add(hue)
        chosen[key] = hue
    return chosen


def _is_hex(text: str) -> bool:
    return bool(text) and all(character in "0123456789abcdef" for character in text)


def look(cell: Cell, colours: Mapping[str, int]) -> str:
    """Return the classes of a cell: `u` and `n` of a call made once, the others with the hue of a repeated one."""
    has_not_run = call_flags.has_not_run(cell.flags)
    if cell.key not in colours:
        return "n" if has_not_run else "u"
    hue = f"h{colours[cell.key]}"
    if has_not_run:
        return f"o {hue}"
    if cell.is_new:
        return f"p {hue}"
    return f"q {hue}" if call_flags.PENDING in cell.flags else f"f {hue}"


def describe(cells: Sequence[Cell]) -> str:
    """Describe a strip in words."""
    if not cells:
        return "No calls yet"
    counts = Counter(cell.key for cell in cells if cell.key)
    repeated = [count for count in counts.values() if count > 1]
    parts = [_count(len(cells), "call")]
    if repeated:
        parts.append(f"{_count(len(repeated), 'call')} repeated, at most {max(repeated)} times")
    else:
        parts.append("none repeated")
    tail = next((len([*same]) for _, same in groupby(reversed(cells), key=lambda cell: cell.key)), 0)
    if tail > 1:
        parts.append(f"the last {tail} equal")
    marks = Counter(cell.outline for cell in cells)
    errors = sum(cell.is_error for cell in cells)
    for count, name in (
        (errors, "error"),
        (marks[call_flags.WARNED], "warning"),
        (marks[call_flags.BLOCKED], "blocked call"),
        (marks[call_flags.HELD], "held call"),
        (marks[call_flags.STOPPED], "stopped call"),
    ):
        if count:
            parts.append(_count(count, name))
    parts += [
        f"{_count(marks[mark], 'call')} that {call_flags.WORDS[mark]}"
        for mark in (call_flags.WOULD_BLOCK, call_flags.WOULD_HOLD, call_flags.WOULD_STOP)
        if marks[mark]
    ]
    return ", ".join(parts)


def _count(count: int, name: str) -> str:
    return f"{count} {name}" + ("" if count == 1 else "s")


def small(cells: Sequence[Cell]) -> Strip:
    """Lay out the strip of a list row: 4 px a call, about a kilobyte."""
    colours = hues(cell.key for cell in cells)
    paths = _Paths()
    pitch, width, height = 5, 4, 15
    # Half a pixel inside: the stroke rounds the corners at a fraction of the bytes of arcs.
    tall, short = f".5 {TOP + 0.5:g}h3v14h-3z", f".5 {TOP + 7.5:g}h3v7h-3z"
    for index, cell in enumerate(cells):
        x = index * pitch
        paths.add(look(cell, colours), f"M{x}{short if cell.is_error else tall}")
        if _has_dot(cell):
            paths.add("dot", f"M{x} 0h3v3h-3z")
    _stops(cells, paths, pitch, width, height)
    return Strip(max(len(cells) * pitch, 1) + 2, TOP + height + 3, describe(cells), paths.all())


def large(
    cells: Sequence[Cell],
    *,
    cell_width: float,
    loops: Sequence[tuple[int, int, str, str]] = (),
    colours: Mapping[str, int] | None = None,
) -> Strip:
    """Lay out the strip of a session page.

    Parameters
    ----------
    cells
        At most a few hundred.
    cell_width
        In pixels, 3 to 24: the zoom.
    loops
        (first seq, last seq, label, href) of each incident, drawn as brackets.
    colours
        Hue of each repeated key; by default of those that are repeated among the cells.
    """
    if colours is None:
        colours = hues(cell.key for cell in cells)
    gap = 1 if cell_width < 6 else 2
    pitch, height = cell_width + gap, CELL_HEIGHT
    paths = _Paths()
    placed = []
    for index, cell in enumerate(cells):
        x = index * pitch
        if _has_dot(cell):
            middle = x + cell_width / 2
            paths.add("dot", f"M{middle - 2:g} 1a2 2 0 1 0 4 0a2 2 0 1 0-4 0z")
        top, tall = (TOP + height * 0.45, height * 0.55) if cell.is_error else (TOP, height)
        placed.append(Placed(cell, x, top, tall, look(cell, colours), title(cell)))
    _stops(cells, paths, pitch, cell_width, height)
    brackets = tuple(_brackets(cells, loops, pitch, cell_width, TOP + height + 8))
    bottom = TOP + height + (10 + 20 * (1 + max(b.line for b in brackets)) if brackets else 6)
    return Strip(
        max(len(cells) * pitch, 1),
        bottom,
        describe(cells),
        paths.all(),
        tuple(placed),
        brackets,
        cell_width,
    )


def title(cell: Cell) -> str:
    """Return a cell in words."""
    words = call_flags.in_words(cell.flags) or ["no new result"]
    return ", ".join([f"#{cell.number} {cell.tool}".strip(), *words])


def outline_class(flag: str) -> str:
    """Return the CSS class of the mark above a column, for a flag of `Cell.outline`; empty for a cell without one."""
    return {"": "", call_flags.WARNED: "ow", call_flags.HELD: "oh"}.get(flag.lower(), "os")


def _has_dot(cell: Cell) -> bool:
    return cell.outline == call_flags.WARNED or call_flags.ran_nevertheless(cell.flags)


def _stops(cells: Sequence[Cell], paths: _Paths, pitch: float, width: float, height: float) -> None:
    """Draw a bar after the last of neighbouring stopped calls."""
    place = 0
    for is_stopped, run in groupby(cells, key=lambda cell: cell.outline == call_flags.STOPPED):
        place += len([*run])
        if is_stopped:
            x = (place - 1) * pitch + width + 1
            paths.add("end", f"M{x:g} {TOP - 2:g}h2v{height + 4:g}h-2z")


def _brackets(
    cells: Sequence[Cell], loops: Sequence[tuple[int, int, str, str]], pitch: float, width: float, y: float
) -> Iterable[Bracket]:
    """Place one bracket per loop, each on the first line where it does not touch an earlier one."""
    line_ends: list[float] = []
    end_of_all = len(cells) * pitch
    seqs = [cell.seq for cell in cells]
    for first, last, label, href in loops:
        start, end = bisect_left(seqs, first), bisect_right(seqs, last)
        if start >= end:
            continue
        x, right = start * pitch, (end - 1) * pitch + width
        space = max(right - x, len(label) * 7.0)
        is_at_end = x + space > end_of_all and right - len(label) * 7.0 > 0
        left_edge = right - space if is_at_end else x
        line = next((i for i, end in enumerate(line_ends) if end + 8 <= left_edge), len(line_ends))
        line_ends[line : line + 1] = [max(right, left_edge + space)]
        top = y + line * 20
        yield Bracket(
            f"M{x:g} {top - 3:g}v3h{right - x:g}v-3",
            line,
            right if is_at_end else x,
            top + 14,
            "end" if is_at_end else "start",
            label,
            href,
        )
