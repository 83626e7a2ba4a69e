"""Folds the stored events of a session again, as evaluation did, and keeps what is found in memory. Writes nothing.

Engine, composition of policies and the life of incidents are those of evaluation. Actions of people on the session
are repeated at their times: changes of settings, stops, and decisions about calls, as far as the same call is held
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.utils import timezone

from detection.engine import commands as grammar
from detection.engine import fold, interventions
from detection.engine.calls import Step
from detection.engine.identity import Keyer
from detection.engine.loop_identity import cycle_name
from detection.engine.memory import BLOCKING
from detection.engine.policy import Policy, Top, stored_values
from detection.models import Approval, ApprovalState, EventType, Incident, Session
from detection.models.incidents import IncidentLabel
from detection.selectors.policies import ProjectOverrides
from detection.services.events.event_records import EventRecord
from detection.services.tracking.outcomes import ApprovalOutcome, apply_outcome
from detection.services.tracking.tracker import ABANDONED_AFTER, IncidentTracker

MAX_COMPARED_POLICIES = 2_000


@dataclass(frozen=True, slots=True)
class Detected:
    """An incident of a replay, or a recorded one, in the form in which they are compared.

    Attributes
    ----------
    seqs
        Sequence numbers of calls of the loop, a bounded number.
    cost_usd
        Of the calls that it counts, as of an incident.
    found_at_call
        Which call of the session it was found at, from 1; 0 if that is not known.
    reacted_at_call
        Which call the strictest decision was the first about; 0 without a reaction.
    """

    kind: str
    calls_digest: str
    tool: str
    agent: str
    backend: str
    model: str
    count: int
    limit: int
    decision: str
    first_seq: int
    last_seq: int
    seqs: frozenset[int]
    opened_at: datetime
    calls: int
    digests: frozenset[str] = frozenset()
    cost_usd: float = 0.0
    found_at_call: int = 0
    reacted_at_call: int = 0
    public_id: str = ""
    label: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_loop(self) -> bool:
        """Whether nobody labelled the recorded incident "not a loop"."""
        return self.label != IncidentLabel.FALSE_ALARM

    @property
    def loop_cost(self) -> float:
        """Its cost in sums of loops, in US dollars."""
        return self.cost_usd if self.is_loop else 0.0


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """A change of a session by people, from the audit; in-chat commands are repeated with their messages instead.

    Attributes
    ----------
    action
        One of `detection.models.audit.SESSION_ACTIONS`.
    values
        The resulting settings, for a change of settings.
    tool
        Of an exemption that was revoked.
    """

    at: datetime
    action: str
    values: Mapping[str, Any] = field(default_factory=dict)
    tool: str = ""


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """An approval of the session, with the rounds that a judge granted."""

    approval: Approval
    granted_rounds: int = 0

    def is_closed_at(self, at: datetime) -> bool:
        """Whether it was decided by then."""
        return self.approval.decided_at is not None and self.approval.decided_at <= at


@dataclass(frozen=True, slots=True)
class Attendance:
    """Actions of people on a session, oldest first, and approvals by public id.

    If `settings` is given, it replaces the session's settings throughout, because the what-if is about them.
    """

    actions: Sequence[RecordedAction] = ()
    decisions: Mapping[str, RecordedDecision] = field(default_factory=dict)
    settings: Mapping[str, Any] | None = None


class SessionReplay:
    """One session under the overrides of its project.

    Parameters
    ----------
    session
        The stored row; it is not changed.
    overrides
        What applies to the project, changed or not.
    top
        What a sub-agent inherits from the session at the top of its tree.
    """

    def __init__(
        self,
        session: Session,
        overrides: ProjectOverrides,
        keyer: Keyer,
        attendance: Attendance,
        top: Top | None = None,
    ) -> None:
        self._overrides, self._keyer, self._top = overrides, keyer, top
        self._state = fold.new_state()
        self._session = Session(
            pk=session.pk,
            project_id=session.project_id,
            external_id=session.external_id,
            is_demo=session.is_demo,
            policy_values=dict(attendance.settings or {}),
        )
        self._tracker = IncidentTracker(self._session, is_replay=True)
        self._found: dict[str, tuple[Incident, int]] = {}
        self._reacted: dict[str, tuple[str, int]] = {}
        self._cost_of: dict[int, float] = {}
        self._latest_at: datetime | None = None
        self._has_own_settings = attendance.settings is not None
        self._actions = [*reversed(attendance.actions)]
        self._decisions = attendance.decisions
        self._held: dict[str, RecordedDecision] = {}
        self.decisions: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.failed_events = 0

    def policy_for(self, event: EventRecord) -> Policy:
        """Return the settings in effect for an event that is to be folded next, before tool rules."""
        while self._actions and self._actions[-1].at <= event.received_at:
            self._repeat(self._actions.pop())
        for calls_digest in [name for name, one in self._held.items() if one.is_closed_at(event.received_at)]:
            self._close(self._held.pop(calls_digest))
        return self.policy_under(self._overrides, event)

    def policy_under(self, overrides: ProjectOverrides, event: EventRecord) -> Policy:
        """Return what `policy_for` has returned, under other overrides of the project."""
        return overrides.policy_for(
            event.agent, event.backend, event.model, self._session.policy_values, self._top
        )

    def _repeat(self, action: RecordedAction) -> None:
        if action.action == "session.policy":
            self._set(action.values)
        elif action.action == "session.stop":
            self._tracker.stop(action.at)
        elif action.action == "session.resume":
            interventions.reset_all(self._state)
        else:
            interventions.revoke_exemption(self._state, action.tool)

    def _set(self, values: Mapping[str, Any]) -> None:
        if not self._has_own_settings:
            self._session.policy_values = dict(values)

    def _close(self, decided: RecordedDecision) -> None:
        """Apply the decision about a call that this replay held, too."""
        approval, settings = decided.approval, self._session.policy_values
        if approval.state == ApprovalState.WITHDRAWN:
            return
        outcome = ApprovalOutcome(
            approval.decision, "", approval.reason, approval.decided_by, approval.choice, approval.raise_by,
            approval.state, decided.granted_rounds,
        )  # fmt: skip
        apply_outcome(approval, outcome, self._session, self._state)
        if self._has_own_settings:
            self._session.policy_values = settings

    def fold(self, event: EventRecord, policy: Policy) -> None:
        """Fold the next event; an event that raises is counted and skipped, as in evaluation."""
        self._abandon(event.received_at)
        if event.cost_usd and (seq := event.seq if event.type == EventType.CALL else event.closes):
            self._cost_of[seq] = self._cost_of.get(seq, 0.0) + event.cost_usd
        self._tracker.begin(event)
        try:
            self._fold(event, policy)
        except Exception:  # noqa: BLE001 - the engine's own faults must not end the replay
            self.failed_events += 1

    def pass_over(self, event: EventRecord) -> None:
        """Count a quarantined event, which detection has not seen."""
        self._session.call_count += event.type == EventType.CALL

    def detected(self) -> list[Detected]:
        """Return the incidents so far."""
        self._abandon(timezone.now())
        return [
            replace(
                _detected(incident, at_call),
                cost_usd=sum(self._cost_of.get(seq, 0.0) for seq in self._tracker.unpriced_calls(name)),
                reacted_at_call=self._reacted.get(name, ("", 0))[1],
            )
            for name, (incident, at_call) in self._found.items()
        ]

    def _fold(self, event: EventRecord, policy: Policy) -> None:
        if event.type == EventType.CALL:
            self._fold_call(event, policy)
            return
        if event.type == EventType.MESSAGE:
            policy = self._run_commands(event, policy)
        step = fold.observe(self._state, event, policy, self._keyer)
        if event.type == EventType.END:
            self._tracker.end_all(event.received_at)
        elif event.message is not None:
            self._observe(event.seq, "", step, policy, event)
        elif step.cell is not None and step.cell.decision not in BLOCKING:
            self._observe(step.cell.seq, step.cell.tool, step, policy, event)

    def _fold_call(self, event: EventRecord, policy: Policy) -> None:
        self._session.call_count += 1
        if event.verdict is not None and event.verdict.stopped_by:
            return  # of a session that was stopped
        step = fold.observe(self._state, event, policy, self._keyer)
        verdict = step.verdict
        if verdict.decision == "hold" and verdict.finding is not None:
            decided = self._decisions.get((event.verdict and event.verdict.approval) or "")
            if decided is not None and not decided.is_closed_at(event.received_at):
                self._held[verdict.finding.calls_digest] = decided
            elif verdict.finding.calls_digest not in self._held:
                interventions.close_hold(self._state, verdict.finding.calls_digest)
        if not step.duplicate:
            self.decisions[verdict.decision] += 1
            self.endings.update([verdict.ending] if verdict.ending else [])
        if (
            verdict.ending == "delay"
            and event.decision == "allow"
            and event.verdict is not None
            and event.verdict.ending == "delay"
        ):
            interventions.run_after_pause(self._state, event.seq)
        self._observe(event.seq, event.tool, step, policy, event)

    def _run_commands(self, event: EventRecord, policy: Policy) -> Policy:
        """Repeat the settings that a message of the user changed; return the policy after them."""
        if event.is_of_user and event.content and grammar.contains_command(event.content):
            for command in grammar.parse(event.content):
                with suppress(grammar.CommandError):
                    self._state.exempt = grammar.exempted(command, self._state.exempt)
                    self._set(grammar.apply(command, stored_values(self._session.policy_values), policy.get))
                policy = self.policy_under(self._overrides, event)
        return policy

    def _observe(self, seq: int, tool: str, step: Step, policy: Policy, event: EventRecord) -> None:
        self._tracker.observe(seq, tool, step, policy, event)
        if step.verdict.findings:
            at_call = self._session.call_count
            for name, incident in self._tracker.active.items():
                self._found.setdefault(name, (incident, at_call))
                if incident.decision != self._reacted.get(name, ("allow", 0))[0]:
                    self._reacted[name] = incident.decision, at_call

    def _abandon(self, now: datetime) -> None:
        """End the loops of a session that was quiet, as housekeeping did."""
        if self._latest_at is not None and now - self._latest_at > ABANDONED_AFTER:
            self._session.last_event_at = self._latest_at
            self._tracker.abandon(self._latest_at + ABANDONED_AFTER)
        self._latest_at = now


def _detected(incident: Incident, at_call: int) -> Detected:
    evidence = incident.evidence
    lap = cycle_name(evidence.get("pattern", ()))
    return Detected(
        kind=incident.kind,
        calls_digest=incident.calls_digest,
        tool=lap or incident.tool,
        agent=incident.agent,
        backend=incident.backend,
        model=incident.model,
        count=incident.count,
        limit=incident.limit,
        decision=incident.decision,
        first_seq=incident.first_seq,
        last_seq=incident.last_seq,
        seqs=frozenset(evidence.get("seqs", ())),
        digests=frozenset(incident.findings),
        opened_at=incident.opened_at,
        calls=incident.calls_in_loop,
        found_at_call=at_call,
        policy=incident.policy,
    )


class PolicyComparison:
    """Compares how two policies treat a call of a tool; caches the results."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, str], tuple[Policy, Policy, bool]] = {}

    def is_alike(self, one: Policy, other: Policy, tool: str) -> bool:
        """Return whether all settings and facts are the same, before and after tool rules."""
        if one is other:
            return True
        key = id(one), id(other), tool
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_COMPARED_POLICIES:
                self._known.clear()
            of_one, of_other = (policy.for_tool(tool) if tool else policy for policy in (one, other))
            is_alike = (
                one.values == other.values
                and of_one.values == of_other.values
                and of_one.traits == of_other.traits
            )
            # The policies are kept with the answer, so that no other one gets their ids.
            known = self._known[key] = one, other, is_alike
        return known[2]
