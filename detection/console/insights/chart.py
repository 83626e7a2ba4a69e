"""A chart of stacked bars over time, drawn on the server in percentages, so that it needs no script and no style."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final

MAX_SERIES: Final = 6
"""Series that are drawn; of more, the last is the others. There are six hues."""
OTHERS: Final = "grey"
"""The colour of the others: a hue of their own would be taken for a name."""
_STEPS: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Tops of the axis, times a power of ten, so that half of each is easy to read."""
_LABELS: Final = 8
"""Labels of the time axis at most; more run into one another on a phone."""
_GAP: Final = 0.12
"""Part of a bucket that is left free on each side, as drawn in the design."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A part of the time axis: its beginning, its end, and the address of its rows."""

    start: datetime
    end: datetime
    url: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A change at a time, with its words, the page with more about it, and words that fit into the chart."""

    at: datetime
    words: str
    url: str
    short: str


@dataclass(frozen=True, slots=True)
class BarPart:
    """One series in a bar: number or name of its colour, and where it is drawn."""

    color: int | str
    y: str
    height: str


@dataclass(frozen=True, slots=True)
class Bar:
    """What is drawn in a bucket."""

    x: str
    width: str
    parts: list[BarPart]
    words: str
    url: str


@dataclass(frozen=True, slots=True)
class Note:
    """A mark as drawn; `turned` writes its words to the left of it, and empty words are in the tooltip only."""

    x: str
    words: str
    title: str
    url: str
    turned: bool


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A bucket in the table of the chart."""

    start: datetime
    url: str
    total: str
    before: str
    values: list[str]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as a template draws it.

    Attributes
    ----------
    keys
        Number or name of the colour, and name of each series.
    ghost
        Path of the previous period, in a box of 100 by 100; empty if there is none.
    lines
        The numbers as a table, the newest first, without buckets that have none.
    """

    keys: list[tuple[int | str, str]]
    bars: list[Bar]
    ghost: str
    top: str
    half: str
    labels: list[tuple[str, str]]
    notes: list[Note]
    lines: list[ChartLine]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.bars and not self.ghost


def stacked(
    buckets: Sequence[Bucket],
    series: Mapping[str, Sequence[float]],
    zone: tzinfo,
    write: Callable[[float], str],
    *,
    before: Sequence[float] = (),
    marks: Sequence[Mark] = (),
) -> Chart:
    """Return the chart of some series.

    Parameters
    ----------
    series
        For each name a number per bucket. Beyond `MAX_SERIES`, those with the smallest sums are added up as *others*.
    before
        What the sum was in the previous period, per bucket.
    write
        Writes a number for people.
    """
    shown = _with_others(series)
    colors = {name: OTHERS if name not in series else number for number, name in enumerate(shown, 1)}
    totals = [sum(values) for values in zip(*shown.values(), strict=True)] or [0.0] * len(buckets)
    has_before = any(before)
    top = nice_top(max([*totals, *(before if has_before else ()), 0.0]))
    width = 100 / max(1, len(buckets))
    bars, lines = [], []
    for place, bucket in enumerate(buckets):
        parts, height, named = [], 0.0, []
        for name, values in shown.items():
            if values[place] > 0:
                height += 100 * values[place] / top
                parts.append(
                    BarPart(colors[name], _percent(100 - height), _percent(100 * values[place] / top))
                )
                named.append(f"{name} {write(values[place])}")
        when = time_words(bucket, zone)
        if parts:
            words = f"{when}: {write(totals[place])}" + (f" ({', '.join(named)})" if len(shown) > 1 else "")
            x, wide = (place + _GAP) * width, (1 - 2 * _GAP) * width
            bars.append(Bar(_percent(x), _percent(wide), parts, words, bucket.url))
        if parts or (has_before and before[place]):
            cells = [write(values[place]) for values in shown.values()]
            earlier = write(before[place]) if has_before else ""
            lines.append(ChartLine(bucket.start, bucket.url, write(totals[place]), earlier, cells))
    return Chart(
        [(color, name) for name, color in colors.items()],
        bars,
        _ghost(before, top) if has_before else "",
        write(top),
        write(top / 2),
        _labels(buckets, zone),
        _notes(buckets, marks),
        lines[::-1],
    )


def nice_top(most: float) -> float:
    """Return the top of an axis: a round number that is not less than the most."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in _STEPS if step * power >= most * 0.999999)


def time_words(bucket: Bucket, zone: tzinfo) -> str:
    """Return the time of a bucket for people, as exactly as it is long."""
    start = bucket.start.astimezone(zone)
    if bucket.end - bucket.start < timedelta(hours=12):
        return f"{start:%H:%M}" if start.minute or start.hour else f"{start.day} {start:%b}"
    return f"{start.day} {start:%b}"


def _with_others(series: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    ordered = sorted(series.items(), key=lambda one: (-sum(one[1]), one[0]))
    ordered = [one for one in ordered if any(one[1])] or ordered[:1]
    if len(ordered) <= MAX_SERIES:
        return dict(ordered)
    kept, rest = ordered[: MAX_SERIES - 1], ordered[MAX_SERIES - 1 :]
    others = [sum(values) for values in zip(*(values for _, values in rest), strict=True)]
    return {**dict(kept), f"{len(rest)} others": others}


def _percent(value: float) -> str:
    return f"{max(0.0, value):.2f}%"


def _ghost(before: Sequence[float], top: float) -> str:
    width = 100 / len(before)
    points = []
    for place, value in enumerate(before):
        y = 100 - 100 * value / top
        points.append(f"{place * width:.2f},{y:.2f} L{(place + 1) * width:.2f},{y:.2f}")
    return f"M{' L'.join(points)}"


def _labels(buckets: Sequence[Bucket], zone: tzinfo) -> list[tuple[str, str]]:
    """Return the place and words of the labels: in the middle of every nth bucket."""
    every = max(1, math.ceil(len(buckets) / _LABELS))
    width = 100 / max(1, len(buckets))
    return [
        (_percent((place + 0.5) * width), time_words(bucket, zone))
        for place, bucket in enumerate(buckets)
        if place % every == 0
    ]


def _notes(buckets: Sequence[Bucket], marks: Sequence[Mark]) -> list[Note]:
    """Return the marks of the range; the first and the last have words, if they are not close to one another."""
    if not buckets:
        return []
    start, length = buckets[0].start, (buckets[-1].end - buckets[0].start).total_seconds()
    places = [
        (100 * (mark.at - start).total_seconds() / length, mark)
        for mark in sorted(marks, key=lambda one: one.at)
        if start <= mark.at < buckets[-1].end
    ]
    spoken = {len(places) - 1}
    if len(places) > 1 and places[0][0] < 45 and places[-1][0] - places[0][0] > 5:
        spoken.add(0)
    return [
        Note(
            _percent(x),
            mark.short if place in spoken else "",
            mark.words,
            mark.url,
            x > 50 or (place == len(places) - 1 and len(spoken) > 1),
        )
        for place, (x, mark) in enumerate(places)
    ]
