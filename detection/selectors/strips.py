"""The loop strip: one cell per call, colour means repetition.

A call key seen once is grey; a repeated one has a hue of its own, pale while its results are new, full without a new
result. A short cell is an error, a hollow one did not run. A dot above stands for a warning, for what the guard would
have done about a call that was only reported, or for a refused call that ran; a bar after a call stands for a stop.
This module lays the cells out; templates and `strip_images` only write paths, so that a strip of sixty calls weighs
about a kilobyte.
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
    "dot": "dot: warned, or ran although its verdict was stricter",
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
class Strip:
    """A laid-out strip.

    Attributes
    ----------
    paths
        (class, path data) of everything that has one look.
    """

    width: float
    height: float
    label: str
    paths: tuple[tuple[str, str], ...] = ()
    is_large: bool = False

    @property
    def key(self) -> str:
        """What the marks of a small strip mean; empty for one without marks."""
        looks = [look.partition(" ")[0] for look, _ in self.paths]
        return "; ".join(dict.fromkeys(_MEANINGS[look] for look in looks if look in _MEANINGS))


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
    ran_refused = sum(call_flags.ran_refused(cell.flags) for cell in cells)
    marks = Counter(cell.outline for cell in cells if not call_flags.ran_refused(cell.flags))
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
    if ran_refused:
        parts.append(f"{_count(ran_refused, 'refused call')} that ran")
    for mark, words in (
        (call_flags.WOULD_BLOCK, "blocked"),
        (call_flags.WOULD_HOLD, "held"),
        (call_flags.WOULD_STOP, "stopped"),
    ):
        if marks[mark]:
            parts.append(f"{_count(marks[mark], 'call')} that would have been {words}")
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


def large(cells: Sequence[Cell], *, cell_width: float, loop: tuple[int, int]) -> Strip:
    """Lay out the strip of a loop, with a bracket below its calls.

    Parameters
    ----------
    cells
        At most a few hundred.
    cell_width
        In pixels.
    loop
        Its first and last event.
    """
    colours = hues(cell.key for cell in cells)
    pitch, height = cell_width + (1 if cell_width < 6 else 2), CELL_HEIGHT
    paths = _Paths()
    for index, cell in enumerate(cells):
        top, tall = (TOP + height * 0.45, height * 0.55) if cell.is_error else (TOP, height)
        paths.add(look(cell, colours), _rounded(index * pitch, top, cell_width, tall))
    for index, cell in enumerate(cells):
        if _has_dot(cell):
            paths.add("dot", f"M{index * pitch + cell_width / 2 - 2:g} 1a2 2 0 1 0 4 0a2 2 0 1 0-4 0z")
    _stops(cells, paths, pitch, cell_width, height)
    seqs = [cell.seq for cell in cells]
    start, end = bisect_left(seqs, loop[0]), bisect_right(seqs, loop[1])
    if start < end:
        left, right = start * pitch, (end - 1) * pitch + cell_width
        paths.add("bracket", f"M{left:g} {TOP + height + 5:g}v3h{right - left:g}v-3")
    bottom = TOP + height + (30 if start < end else 6)
    return Strip(max(len(cells) * pitch, 1), bottom, describe(cells), paths.all(), is_large=True)


def _rounded(x: float, y: float, width: float, height: float) -> str:
    radius = min(3.0, width / 3)
    inner, down = width - 2 * radius, height - 2 * radius
    corner = f"a{radius:g} {radius:g} 0 0 1"
    return (
        f"M{x + radius:g} {y:g}h{inner:g}{corner} {radius:g} {radius:g}v{down:g}{corner}-{radius:g} "
        f"{radius:g}h-{inner:g}{corner}-{radius:g}-{radius:g}v-{down:g}{corner} {radius:g}-{radius:g}z"
    )


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
