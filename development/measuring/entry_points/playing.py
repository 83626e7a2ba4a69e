"""Plays scenarios on an installation, as many at a time as can be, and says which it skips."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Protocol

from development.measuring.differences import Played
from development.measuring.entry_points import agents, gateway, reports, seeds
from development.measuring.entry_points.clocks import Clock, RealClock, TestClock, play_together
from development.measuring.entry_points.installation import Installation
from development.measuring.entry_points.judge import ScriptedJudge
from development.measuring.entry_points.scripted_model import ScriptedModel
from development.measuring.entry_points.stage import Stage
from development.measuring.scenario_files import WrittenScenario


class _Play(Protocol):
    """A scenario on its way through an interface."""

    played: Played

    def steps(self) -> Iterator[float]:
        """Play."""


_EntryPoint = dict[str, tuple[Callable[[Any, Stage], str], Callable[[Any, Stage], _Play]]]
"""By the format of a scenario: what says why it cannot be played, and what plays it."""
_REPORTS = (reports.obstacle, reports.ReportPlay)  # each case names its own entry point
ENTRY_POINTS: dict[str, _EntryPoint] = {
    "guard": {
        "system": (seeds.obstacle, seeds.SeedGuardPlay),
        "agent": (agents.obstacle, agents.AgentGuardPlay),
        "report": _REPORTS,
    },
    "events": {
        "system": (seeds.obstacle_of_reports, seeds.SeedReportPlay),
        "agent": (agents.obstacle_of_reports, agents.AgentReportPlay),
        "report": _REPORTS,
    },
    "gateway": {
        "system": (gateway.obstacle, gateway.GatewayPlay),
        "agent": (gateway.not_in_sample, gateway.GatewayPlay),
        "report": _REPORTS,
    },
}


def play_on_installation(
    scenarios: Sequence[WrittenScenario],
    url: str,
    key: str,
    *,
    through: str,
    clock_file: Path | None = None,
    judge_port: int | None = None,
    model_port: int | None = None,
    longest_seconds: float = 5.0,
) -> tuple[list[Played], dict[str, list[str]]]:
    """Play scenarios through an interface of a running installation.

    Parameters
    ----------
    url, key
        Its address, and a key of a project without settings of its own.
    through
        One of `ENTRY_POINTS`; reported runs have their own.
    clock_file
        The file of its test clock; without it, pauses are real.
    judge_port
        Port of this machine that it asks its judge on; None if no scenario may ask.
    model_port
        Port of this machine that its gateway may ask a model server on; None if no scenario may ask.
    longest_seconds
        Span of the longest scenario that is played without a test clock.

    Returns
    -------
    tuple
        The played scenarios, and the ids of the others by the reason.

    Raises
    ------
    InstallationError
        When nothing can be played.
    """
    clock: Clock = RealClock(longest_seconds) if clock_file is None else TestClock(clock_file)
    judge = None if judge_port is None else ScriptedJudge(judge_port)
    model = None if model_port is None else ScriptedModel(model_port)
    with (
        closing(Installation(url, key)) as installation,
        judge.running() if judge else nullcontext(),
        model.running() if model else nullcontext(),
    ):
        stage = Stage(installation, clock, judge, model)
        try:
            if isinstance(clock, TestClock):
                stage.check_clock(clock.start)
            skipped: dict[str, list[str]] = {}
            plays: list[_Play] = []
            alone: list[_Play] = []
            for scenario in scenarios:
                obstacle, play = ENTRY_POINTS[through][scenario.format]
                reason = obstacle(scenario.document, stage)
                if reason:
                    skipped.setdefault(reason, []).append(scenario.id)
                else:
                    (alone if scenario.is_alone else plays).append(play(scenario.document, stage))
            play_together((one.steps() for one in plays), clock)
            for one in alone:
                play_together([one.steps()], clock)
        finally:
            stage.clear()
    return [one.played for one in (*plays, *alone)], skipped
