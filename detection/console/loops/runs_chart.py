"""The runs of a loop over time, as bars in percent of the plot, with the changes of policies as marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from detection.engine import durations
from detection.models import AuditEntry
from detection.selectors.loop_runs import HELD, LOOPING, STOPPED, WENT_ON, RunBars

FILLS = ((WENT_ON, "fill-once"), (STOPPED, "fill-grey"), (HELD, "fill-held"), (LOOPING, "fill-act"))
"""What became of runs, from the bottom of a bar to its top."""
GAP = 0.15
"""Share of a bar's place that stays free."""
DAYS_FROM: Final = timedelta(days=4)
"""Longer charts name days at their axis, shorter ones minutes: then two names would be the same day. A judgement."""
MAX_MARKS = 3
"""Changes with a line of their own; more would cover one another."""


@dataclass(frozen=True, slots=True)
class RunBar:
    """A part of a bar; x, y, width and height are percentages with their sign."""

    fill: str
    x: str
    y: str
    width: str
    height: str
    title: str


@dataclass(frozen=True, slots=True)
class PolicyMark:
    """A change of a policy; `second` is for the texts that come after another one close by."""

    x: str
    words: str
    anchor: str


@dataclass(frozen=True, slots=True)
class RunsChart:
    """What the template draws; `ticks` are the times below the plot with their words, `top` is the highest number."""

    bars: Sequence[RunBar]
    marks: Sequence[PolicyMark]
    top: int
    ticks: Sequence[tuple[datetime, str]]
    label: str


def chart_of(runs: RunBars, changes: Sequence[AuditEntry]) -> RunsChart:
    """Lay out the bars."""
    number = len(runs.bars)
    top = max(2, max(sum(bar.values()) for bar in runs.bars))
    top += top % 2
    step = 100 / number
    bars = []
    for place, bar in enumerate(runs.bars):
        height = 0.0
        for kind, fill in FILLS:
            if count := bar.get(kind, 0):
                share = 100 * count / top
                height += share
                words = f"{count:,} {_WORDS[kind]}"
                bars.append(
                    RunBar(
                        fill,
                        _percent(place * step + step * GAP / 2),
                        _percent(100 - height),
                        _percent(step * (1 - GAP)),
                        _percent(share),
                        words,
                    )
                )
    total = sum(sum(bar.values()) for bar in runs.bars)
    width = durations.span(runs.width.total_seconds())
    span = runs.width * number
    marks = []
    for change in [*changes][:MAX_MARKS]:
        x = 100 * (change.at - runs.start) / span
        if 0 <= x <= 100:
            marks.append(PolicyMark(_percent(x), change_words(change), "end" if x > 66 else "start"))
    return RunsChart(
        bars,
        marks,
        top,
        [(at, _tick(at, span)) for at in (runs.start + span * part for part in (0, 1 / 3, 2 / 3))],
        f"{total:,} run{'' if total == 1 else 's'}, bars of {width}",
    )


_WORDS = {LOOPING: "looping now", HELD: "held", STOPPED: "stopped", WENT_ON: "continued"}


def _tick(at: datetime, span: timedelta) -> str:
    """Return a time in UTC as exactly as the span of the chart allows: to the day or to the minute."""
    utc = at.astimezone(UTC)
    return f"{utc.day} {utc:%b}" if span > DAYS_FROM else f"{utc.day} {utc:%b} {utc:%H:%M} UTC"


def change_words(change: AuditEntry) -> str:
    """Return a change of a policy in words."""
    return f"Settings of {change.subject}"


def _percent(value: float) -> str:
    return f"{value:.2f}%"
