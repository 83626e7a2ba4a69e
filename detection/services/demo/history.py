"""Plays two weeks of scripted runs into the past, so that every page shows at the first visit what it is for.

Nothing is made up but the agents: each call goes through detection at its own time, and what the agents do next follows
from the verdicts. What people did with the loops goes through the same services as their clicks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final, NamedTuple

from django.contrib.auth import get_user_model
from django.utils import timezone

from detection import clock
from detection.demo.healthy import HEALTHY
from detection.demo.scenario import Scenario, Script, ScriptedCall
from detection.demo.stuck import STUCK
from detection.engine.calls import DECISIONS
from detection.engine.scopes import Scope
from detection.models import EventType, Loop, Project
from detection.models.approvals import Choice
from detection.models.incidents import LabelReason
from detection.models.sessions import HOOKS
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM, Actor
from detection.services.events.event_records import EventRecord
from detection.services.exceptions import fine
from detection.services.incidents import loop_triage
from detection.services.ingestion.guard import GuardRequest
from detection.services.ingestion.played_session import PlayedSession, played_session
from detection.services.keys import Principal
from detection.services.maintenance.hourly_counts import count_calls
from detection.services.policies import overrides
from detection.services.projects.projects import create_project
from detection.services.search.indexing import index_texts

DAYS: Final = 14
SESSIONS_PER_DAY: Final = 22
"""On a working day: some 300 sessions in two weeks, which are played within the 20 s that a start may take."""
WEEKEND_SHARE: Final = 0.3
LAST_DAY_SESSIONS: Final = 24
"""In the last 24 hours, whatever day it is."""
STUCK_SHARE: Final = 0.34
OTHER_SHARE: Final = 0.25
"""Share of the sessions that belong to the second project."""
OTHER_SLUG: Final = "demo-back-office"
THINKING_SECONDS: Final = (1.0, 9.0)
"""Pause of a model before a call, besides that of the script."""
SPARE_MINUTES: Final = 12
"""No run begins later than this before now, so that each has ended."""
ANSWER_SECONDS: Final = (15.0, 90.0)
"""How soon a person answers a held call: within the two minutes that it waits."""
_SEED: Final = 7
_INTEGRATIONS: Final = {
    "coder": f"{HOOKS}claude-code",
    "analyst": f"{HOOKS}codex",
    "researcher": "client",
    "triage": "gateway",
}
_LIMITS: Final[Sequence[tuple[Scope, dict[str, int], str]]] = (
    (
        Scope("model", backend="openai", model="gpt-5-mini"),
        {"max_repeats": 6},
        "It polls jobs that take minutes.",
    ),
    (Scope("agent", agent="refunds"), {"answer_timeout_seconds": 900}, "The desk answers within 15 minutes."),
)
_BACK_OFFICE: Final = frozenset(("bookkeeper", "analyst", "refunds", "poller"))


class _Run(NamedTuple):
    scenario: Scenario
    project: Project
    name: str
    at: datetime


def play_history(now: datetime | None = None) -> int:
    """Play the past of the demo once.

    Parameters
    ----------
    now
        Where the past ends; the present by default.

    Returns
    -------
    int
        Number of sessions; 0 if it has been played before, which the second project shows.
    """
    first = Project.objects.order_by("pk").first()
    if first is None:
        raise RuntimeError("Set LoopGuard up before playing the demo.")
    if Project.objects.filter(slug=OTHER_SLUG).exists():
        return 0
    operator = _operator()
    other = create_project(operator, name="Back office (demo)", slug=OTHER_SLUG)
    draw, now = Random(_SEED), now or timezone.now()  # noqa: S311 - pauses and costs of a script
    runs = [*_runs(first, other, now, draw)]
    for run in runs:
        _Agent(run, operator, draw).play()
    for project in (first, other):
        _triage(project, operator)
    _set_limits(first, operator)
    count_calls()
    index_texts()
    return len(runs)


def _operator() -> Actor:
    """Return the person who triages the loops: the first administrator."""
    person = get_user_model().objects.filter(is_superuser=True).order_by("pk").first()
    return SYSTEM if person is None else Actor(person.get_username(), person.pk)


def _runs(first: Project, other: Project, now: datetime, draw: Random) -> Iterator[_Run]:
    for number, at in enumerate(_times(now, draw), 1):
        scenario = draw.choice(STUCK if draw.random() < STUCK_SHARE else HEALTHY)
        is_other = scenario.agent in _BACK_OFFICE and draw.random() < 2 * OTHER_SHARE
        name = f"{scenario.agent}/{scenario.name}-{draw.getrandbits(16):04x}{number:03d}"
        yield _Run(scenario, other if is_other else first, name, at)


def _times(now: datetime, draw: Random) -> Iterator[datetime]:
    for days_ago in range(DAYS, -1, -1):
        day = (now - timedelta(days=days_ago)).replace(hour=0, minute=0, second=0, microsecond=0)
        share = WEEKEND_SHARE if day.weekday() >= 5 else 1.0
        for _ in range(round(SESSIONS_PER_DAY * share * draw.uniform(0.75, 1.25))):
            # Two thirds of the work is done between 8 and 18 o'clock.
            hour = draw.uniform(8, 18) if draw.random() < 0.67 else draw.uniform(0, 24)
            at = day + timedelta(hours=hour)
            if now - timedelta(days=DAYS) <= at <= now - timedelta(minutes=SPARE_MINUTES):
                yield at
    # The bars of 24 hours show something on a Sunday, too.
    for _ in range(LAST_DAY_SESSIONS):
        yield now - timedelta(minutes=draw.uniform(SPARE_MINUTES, 24 * 60))


class _Agent:
    """The agent of one run: it makes the calls of its script and follows the verdicts."""

    def __init__(self, run: _Run, operator: Actor, draw: Random) -> None:
        self._run, self._operator, self._draw = run, operator, draw
        scenario = run.scenario
        asks = scenario.endpoint == "guard"
        self._integration = _INTEGRATIONS.get(scenario.agent, "guard") if asks else "events"
        self._principal = Principal.of_project(run.project, "demo", ("guard", "ingest"), is_demo=True)
        self._script = Script(scenario, draw)
        self._groups = self._script.groups()
        self._at = run.at
        self._unsent: list[EventRecord] = []
        self._decision = ""
        self._held = ""

    def play(self) -> None:
        """Run to the end; a call that is held waits for a person, who answers it or not."""
        while True:
            with played_session(self._principal, self._run.name, self._integration, self._at) as session:
                is_over = self._go_on(session)
            if is_over:
                return
            self._await_answer()

    def _go_on(self, session: PlayedSession) -> bool:
        """Make calls until the run is over, or a call is held."""
        outcome = ""
        if not self._decision and (prompt := self._script.prompt):
            session.report([self._event(EventType.MESSAGE, content=prompt)], self._at)
        try:
            while True:
                group = self._groups.send(self._decision) if self._decision else next(self._groups)
                self._at += timedelta(seconds=group.seconds + self._draw.uniform(*THINKING_SECONDS))
                self._decision = self._make(session, group.calls)
                if self._held:
                    return False
        except StopIteration as end:
            outcome = "cancelled" if end.value == "stopped" else str(end.value)
        self._at += timedelta(seconds=1)
        session.report([*self._unsent, self._event(EventType.END, content=outcome)], self._at)
        return True

    def _make(self, session: PlayedSession, calls: Sequence[ScriptedCall]) -> str:
        if self._run.scenario.endpoint == "events":
            events = [event for one in calls for event in (self._call(one), self._result(one))]
            session.report(events, self._at)
            return "allow"
        scenario = self._run.scenario
        answer = session.ask(
            GuardRequest(
                session=self._run.name,
                backend=scenario.backend,
                model=scenario.model,
                agent=scenario.agent,
                integration=self._integration,
                results=tuple(self._unsent),
                calls=tuple(self._call(one) for one in calls),
            ),
            self._at,
        )
        may_run = {one.call_id for one in answer.verdicts if one.decision in ("allow", "warn")}
        self._unsent = [self._result(one) for one in calls if one.call_id in may_run]
        self._held = next((str(one.approval["id"]) for one in answer.verdicts if one.approval), "")
        return max((one.decision for one in answer.verdicts), key=DECISIONS.index, default="allow")

    def _await_answer(self) -> None:
        """Answer the held call as a person, or let its deadline pass."""
        project_id, held, self._held = self._run.project.pk, self._held, ""
        choice = self._draw.choice((Choice.SKIP, Choice.SKIP, Choice.STOP, None))
        self._at += timedelta(seconds=self._draw.uniform(*ANSWER_SECONDS))
        with clock.at(self._at):
            if choice is not None:
                self._decision = decisions.decide(project_id, held, choice, self._operator).decision
                return
            approval = decisions.find(project_id, held)
        self._at = approval.deadline + timedelta(seconds=1)
        self._decision = approval.unattended

    def _event(self, kind: str, **values: Any) -> EventRecord:
        scenario = self._run.scenario
        return EventRecord(
            type=kind,
            session=self._run.name,
            agent=scenario.agent,
            backend=scenario.backend,
            model=scenario.model,
            **values,
        )

    def _call(self, one: ScriptedCall) -> EventRecord:
        return self._event(
            EventType.CALL,
            call_id=one.call_id,
            round=one.round,
            tool=one.tool,
            arguments=one.arguments,
            tokens=one.input_tokens + one.output_tokens,
            cost_usd=one.cost_usd,
        )

    def _result(self, one: ScriptedCall) -> EventRecord:
        return self._event(EventType.RESULT, call_id=one.call_id, content=one.content, is_error=one.is_error)


def _triage(project: Project, operator: Actor) -> None:
    """Triage the loops of a project: one is fine, some are loops, some are done, one can wait."""
    loops = [*Loop.objects.filter(project_id=project.pk).order_by("pk")]
    for number, loop in enumerate(loops):
        what = number % 6
        if loop.tool == "get_job_status":
            fine.fine(
                project.pk, loop.public_id, operator, LabelReason.POLL, "The job takes minutes.",
                where="agent",
            )  # fmt: skip
        elif what == 0:
            loop_triage.confirm(project.pk, loop.public_id, operator)
        elif what == 1:
            loop_triage.done(project.pk, loop.public_id, operator)
        elif what == 2:
            loop_triage.later(project.pk, loop.public_id, operator, until_worse=True)


def _set_limits(project: Project, operator: Actor) -> None:
    """Set what the matrix of policies and its history show: a limit of a model and one of an agent."""
    for scope, values, note in _LIMITS:
        overrides.save_override(project.pk, scope, values, operator, note)
