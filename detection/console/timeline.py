"""Layout of the timeline of a session: one lane per tool, idle stretches compressed, loops as bands."""

from __future__ import annotations

from bisect import bisect, bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from statistics import median

from detection.console import formatting
from detection.engine import durations
from detection.engine.detectors import detector_for
from detection.models import call_flags
from detection.selectors.session_runs import RunIncident
from detection.selectors.sessions import CallRow, CompactionRow
from detection.selectors.strips import Cell, look, outline_class, title

MAX_LANES = 10
LANE_HEIGHT, CELL, MIN_STEP, MAX_STEP, GAP_STEP = 24.0, 9.0, 11.0, 56.0, 64.0
USUAL_STEP = 16.0
TOP = 26.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A call in its lane."""

    seq: int
    x: float
    y: float
    height: float
    look: str
    outline: str
    title: str
    is_new: bool

    @property
    def frame_x(self) -> float:
        """Left edge of the outline."""
        return self.x - 2

    @property
    def frame_y(self) -> float:
        """Upper edge of the outline."""
        return self.y - 2

    @property
    def frame_height(self) -> float:
        """Height of the outline."""
        return self.height + 4


@dataclass(frozen=True, slots=True)
class Gap:
    """An idle stretch, drawn short."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Compaction:
    """Where the context was compacted, between two calls: once or several times."""

    x: float
    count: int
    at: datetime

    @property
    def sign(self) -> str:
        """Path of the triangle above the line."""
        return f"M{self.x - 4} 14h8l-4 6z"


@dataclass(frozen=True, slots=True)
class ToolLane:
    """The calls of one tool."""

    name: str
    y: float
    middle: float
    count: int

    @property
    def line(self) -> float:
        """Position of the line below the lane."""
        return self.y + LANE_HEIGHT


@dataclass(frozen=True, slots=True)
class Band:
    """A loop, drawn behind the lanes."""

    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """A laid-out timeline; all lengths in pixels."""

    width: float
    height: float
    lanes: tuple[ToolLane, ...]
    marks: tuple[Mark, ...]
    gaps: tuple[Gap, ...]
    bands: tuple[Band, ...]
    compactions: tuple[Compaction, ...] = ()

    @property
    def tools(self) -> str:
        """The lanes in words."""
        return ", ".join(f"{lane.name} {lane.count} times" for lane in self.lanes)

    @property
    def compaction_count(self) -> int:
        """How often the context was compacted."""
        return sum(one.count for one in self.compactions)

    @property
    def compacted_at(self) -> datetime | None:
        """When it was compacted for the last time."""
        return self.compactions[-1].at if self.compactions else None

    @property
    def band_height(self) -> float:
        """Height of the background of a loop."""
        return self.height - 20


def lay_out(
    calls: Sequence[CallRow],
    colours: dict[str, int],
    incidents: Sequence[RunIncident],
    compactions: Sequence[CompactionRow] = (),
    unmarked: frozenset[int] = frozenset(),
) -> Timeline:
    """Place calls over time, and the compactions between them; `unmarked` calls get no outline.

    Steps between calls follow their distance in time within bounds; a stretch far longer than usual becomes a gap of
    one width with its length written on it, so that a burst stays readable beside an hour of silence.
    """
    names = [name for name, _ in Counter(call.tool for call in calls).most_common()]
    shown, has_rest = names[:MAX_LANES], len(names) > MAX_LANES
    lane_of = {name: min(index, MAX_LANES) for index, name in enumerate(names)}
    steps = [
        max(0.0, (after.received_at - before.received_at).total_seconds())
        for before, after in pairwise(calls)
    ]
    usual = median(steps) if steps else 1.0
    is_gap = [step > max(30.0, usual * 12) for step in steps]
    marks, gaps, xs = [], [], []
    x = 6.0
    for index, call in enumerate(calls):
        if index:
            if is_gap[index - 1]:
                gaps.append(
                    Gap(x + CELL + (GAP_STEP - CELL) / 2, durations.span(steps[index - 1], is_short=True))
                )
                x += GAP_STEP
            else:
                x += min(
                    MAX_STEP, max(MIN_STEP, USUAL_STEP * steps[index - 1] / usual if usual else MIN_STEP)
                )
        xs.append(x)
        flags = call_flags.without_decision(call.flags) if call.seq in unmarked else call.flags
        cell = Cell(call.seq, call.call_key[:6], flags, formatting.visible(call.tool), call.call_number)
        top = TOP + lane_of[call.tool] * LANE_HEIGHT + 4
        marks.append(
            Mark(
                call.seq, x, top + (8 if cell.is_error else 0), 8 if cell.is_error else 16, look(cell, colours),
                outline_class(cell.outline), title(cell), cell.is_new,
            )
        )  # fmt: skip
    lanes = [
        ToolLane(
            name,
            TOP + index * LANE_HEIGHT,
            TOP + index * LANE_HEIGHT + 16,
            sum(call.tool == name for call in calls),
        )
        for index, name in enumerate(shown)
    ]
    if has_rest:
        y = TOP + MAX_LANES * LANE_HEIGHT
        lanes.append(ToolLane(f"{len(names) - MAX_LANES} other tools", y, y + 16, 0))
    width = (xs[-1] if xs else 0) + CELL + 12
    return Timeline(
        width,
        TOP + len(lanes) * LANE_HEIGHT + 6,
        tuple(lanes),
        tuple(marks),
        tuple(gaps),
        tuple(_bands(calls, xs, incidents)),
        tuple(_compactions(calls, xs, compactions)),
    )


def _compactions(
    calls: Sequence[CallRow], xs: Sequence[float], compactions: Sequence[CompactionRow]
) -> Iterator[Compaction]:
    """Place compactions in the middle of the space before the next call."""
    seqs = [call.seq for call in calls]
    for index, group in groupby(compactions, key=lambda row: bisect(seqs, row.seq)):
        rows = list(group)
        end = xs[index - 1] + CELL if index else 0.0
        start = xs[index] if index < len(xs) else end + MIN_STEP
        yield Compaction((end + start) / 2, len(rows), rows[-1].received_at)


def _bands(calls: Sequence[CallRow], xs: Sequence[float], incidents: Sequence[RunIncident]) -> list[Band]:
    bands: list[Band] = []
    label_end = 0.0
    seqs = [call.seq for call in calls]
    for incident in incidents:
        inside = xs[bisect_left(seqs, incident.first_seq) : bisect_right(seqs, incident.last_seq)]
        if inside:
            x = inside[0] - 4
            # Loops that begin together share the first one's label.
            words = (
                durations.span(incident.count, is_short=True)
                if detector_for(incident.kind).is_silence
                else f"{incident.count} ×"
            )
            text = words if x >= label_end else ""
            label_end = x + 36 if text else label_end
            bands.append(Band(x, inside[-1] - x + CELL + 4, text))
    return bands
