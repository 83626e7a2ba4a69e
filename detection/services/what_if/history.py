"""Reads the stored history of a project for a what-if, and replays it session by session, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from typing import Final

from django.db.models import Max, Q, Sum

from detection.engine.detectors import DETECTORS
from detection.engine.fields import FIELDS
from detection.engine.identity import Keyer
from detection.engine.policy import stored_values
from detection.models import Approval, AuditEntry, EventType, Incident, Project, QuarantinedEvent, Session
from detection.models.audit import SESSION_ACTIONS
from detection.selectors.ancestors import top_of
from detection.selectors.packed_events import is_packed_by_now
from detection.selectors.policies import ProjectOverrides
from detection.services.events import event_records
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.ingest import digest_of_arguments
from detection.services.sessions.chat_commands import CHAT
from detection.services.what_if.changes import PolicyChange
from detection.services.what_if.comparison import Findings, SessionOutcome
from detection.services.what_if.replay import (
    Attendance,
    Detected,
    PolicyComparison,
    RecordedAction,
    RecordedDecision,
    SessionReplay,
)

BATCH_EVENTS: Final = 200
"""Events in memory at a time; each can have a long text."""
MAX_EVENTS: Final = 20_000
"""Events of one session that are replayed, its first ones."""
NOT_STORED, TOO_LONG = "payloads_not_stored", "too_long"
_NOT_REPLAYED = [one.kind for one in DETECTORS if one.is_silence or one.spans_family]
"""A replay folds the events of one session. What is found otherwise is neither gained nor lost by a change."""
_RECORDED = (
    "session_id", "public_id", "label", "kind", "calls_digest", "tool", "agent", "backend", "model", "count",
    "limit", "decision", "first_seq", "last_seq", "evidence__seqs", "findings", "opened_at", "calls_in_loop",
    "policy", "done_at", "ended_at",
)  # fmt: skip


class _PayloadMissing(Exception):
    """The arguments of a call are not stored."""


@dataclass(slots=True)
class Records:
    """Records of a group of sessions other than events, by row id."""

    incidents: dict[int, list[Detected]] = field(default_factory=dict)
    actions: dict[int, list[RecordedAction]] = field(default_factory=dict)
    decisions: dict[int, dict[str, RecordedDecision]] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    quarantined: dict[int, set[int]] = field(default_factory=dict)


class History:
    """The history of a project under its current policy and under a changed one.

    Parameters
    ----------
    stored
        The current overrides of the project.
    since
        Calls before this time are replayed where their session lasted longer, and do not count.
    pause
        Called after every batch of events.
    """

    def __init__(
        self,
        project: Project,
        stored: ProjectOverrides,
        change: PolicyChange,
        keyer: Keyer,
        since: datetime,
        pause: Callable[[], object],
    ) -> None:
        self._project, self._stored, self._change, self._keyer = project, stored, change, keyer
        self._changed = change.applied(stored)
        self._since, self._pause = since, pause
        self._comparison = PolicyComparison()
        self._no_arguments = digest_of_arguments(None, bytes(project.digest_secret))
        self._policy_changed_at = AuditEntry.objects.filter(
            Q(project_id=project.pk) | Q(project_id=None), action__startswith="policy.", at__gte=since
        ).aggregate(at=Max("at"))["at"]

    def records_of(self, sessions: Sequence[Session]) -> Records:
        """Read the records of some sessions; four queries."""
        records, ids = Records(), [session.pk for session in sessions]
        if not ids:
            return records
        for row in (
            Incident.objects.filter(project=self._project, session_id__in=ids)
            .exclude(kind__in=_NOT_REPLAYED)
            .order_by("pk")
            .values(*_RECORDED)
        ):
            session_id, done_at, ended_at = (row.pop(name) for name in ("session_id", "done_at", "ended_at"))
            if done_at is not None and done_at == ended_at:
                records.touched.add(session_id)  # a person ended the loop
            row |= {
                "seqs": frozenset(row.pop("evidence__seqs") or ()),
                "digests": frozenset(row.pop("findings")),
                "calls": row.pop("calls_in_loop"),
            }
            records.incidents.setdefault(session_id, []).append(Detected(**row))
        names = {session.external_id: session.pk for session in sessions}
        entries = AuditEntry.objects.filter(
            project_id=self._project.pk, action__in=SESSION_ACTIONS, subject__in=names
        )
        for entry in entries.order_by("at", "id"):
            session_id = names[entry.subject]
            if entry.action != "session.policy":
                records.touched.add(session_id)
            if entry.actor != CHAT.name:
                values, tool = stored_values(entry.after or {}), str((entry.before or {}).get("tool", ""))
                action = RecordedAction(entry.at, entry.action, values, tool)
                records.actions.setdefault(session_id, []).append(action)
        for approval in Approval.objects.filter(project=self._project, session_id__in=ids).annotate(
            granted=Sum("judge_calls__rounds_granted")
        ):
            records.touched.add(approval.session_id)
            decision = RecordedDecision(approval, approval.granted or 0)
            records.decisions.setdefault(approval.session_id, {})[approval.public_id] = decision
        for session_id, seq in QuarantinedEvent.objects.filter(
            project=self._project, session_id__in=ids
        ).values_list("session_id", "seq"):
            records.quarantined.setdefault(session_id, set()).add(seq)
        return records

    def replay(self, session: Session, records: Records, findings: Findings) -> None:
        """Replay a session under both policies, and add its findings."""
        try:
            before, after, calls = self._replay_both(session, records, findings)
        except _PayloadMissing:
            findings.miss(NOT_STORED, sessions=1, calls=session.call_count)
            findings.replayed["calls_since"] += session.call_count
            return
        missing = session.call_count - calls
        if missing > 0:
            findings.miss(TOO_LONG, sessions=0, calls=missing)
            findings.replayed["calls_since"] += missing
        findings.replayed.update(sessions=1, calls=calls, unaffected_sessions=int(after is before))
        recorded = records.incidents.get(session.pk, [])
        found = before.detected()
        outcome = SessionOutcome(
            name=session.external_id,
            recorded=recorded,
            before=found,
            after=found if after is before else after.detected(),
            settings_now={one.public_id: self._settings_now(session, one) for one in recorded},
            is_touched_by_people=session.pk in records.touched,
            policy_changed_at=self._policy_changed_at,
        )
        findings.decisions["before"].update(before.decisions)
        findings.decisions["after"].update(after.decisions)
        findings.endings["before"].update(before.endings)
        findings.endings["after"].update(after.endings)
        findings.add(outcome, self._since)

    def _replay_both(
        self, session: Session, records: Records, findings: Findings
    ) -> tuple[SessionReplay, SessionReplay, int]:
        attendance = Attendance(records.actions.get(session.pk, ()), records.decisions.get(session.pk, {}))
        own, top = self._change.settings_of(session.external_id), top_of(session)
        before = SessionReplay(session, self._stored, self._keyer, attendance, top)
        began_at = findings.replayed["began_at"] or inf
        skipped, calls, is_alike = (
            records.quarantined.get(session.pk, frozenset[int]()),
            0,
            own is None,
        )
        batches: list[list[EventRecord]] = []
        for batch in self._batches(session):
            batches = [batch] if not batches else [[]]  # kept only if there is a single one
            for event in batch:
                self._check_payload(event)
                policy = before.policy_for(event)
                if is_alike:
                    other = before.policy_under(self._changed, event)
                    tool = event.tool if event.type == EventType.CALL else ""
                    is_alike = self._comparison.is_alike(policy, other, tool)
                if event.type == EventType.CALL:
                    calls += 1
                    at = event.received_at
                    findings.replayed["calls_since"] += at >= self._since and at.timestamp() < began_at + 1
                if event.seq in skipped:
                    before.pass_over(event)
                else:
                    before.fold(event, policy)
            self._pause()
        findings.replayed["failed_events"] += before.failed_events
        if is_alike:
            return before, before, calls
        after = SessionReplay(session, self._changed, self._keyer, replace(attendance, settings=own), top)
        is_single = len(batches) == 1 and bool(batches[0])
        for batch in batches if is_single else self._batches(session):
            for event in batch:
                if event.seq in skipped:
                    after.pass_over(event)
                else:
                    after.fold(event, after.policy_for(event))
            self._pause()
        return before, after, calls

    def _batches(self, session: Session) -> Iterator[list[EventRecord]]:
        seq, packed = 0, event_records.packed(session)
        while seq < min(session.evaluated_seq, MAX_EVENTS):
            if packed is None:
                read = event_records.after(session.key, seq, BATCH_EVENTS)
            else:
                read = [event for event in packed if event.seq > seq][:BATCH_EVENTS]
            if not read and is_packed_by_now(session):
                packed = event_records.packed(session)
                continue
            batch = [event for event in read if event.seq <= min(session.evaluated_seq, MAX_EVENTS)]
            if not batch:
                return
            yield batch
            seq = batch[-1].seq

    def _check_payload(self, event: EventRecord) -> None:
        is_call = event.type == EventType.CALL
        if is_call and event.arguments is None and event.arguments_digest != self._no_arguments:
            raise _PayloadMissing

    def _settings_now(self, session: Session, one: Detected) -> dict[str, object]:
        """Return the current values of the settings that explain a recorded incident, as it stores them."""
        policy = self._stored.policy_for(
            one.agent, one.backend, one.model, stored_values(session.policy_values), top_of(session)
        ).for_tool(one.tool)
        explained = policy.explain(name for name in one.policy if name in FIELDS)
        return {name: setting["value"] for name, setting in explained.items()}
