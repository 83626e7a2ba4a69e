"""Evaluates quarantined events again, after the defect that made them fail was fixed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Max

from detection.engine.memory import BLOCKING
from detection.models import EventType, QuarantinedEvent, call_flags
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import NotFound
from detection.services.sessions.folding import EventEvaluationError
from detection.services.sessions.locked_session import LockedSession, locked_session_by_name
from detection.services.sessions.tracker_state import Outcome
from detection.sql.retries import retry_conflicts

MAX_SESSIONS = 100
"""Sessions of one `retry_all`; the rest takes another one."""


@dataclass(frozen=True, slots=True)
class RetryResult:
    """How many quarantined events were evaluated, failed again, or can no longer be evaluated."""

    evaluated: int = 0
    failed: int = 0
    expired: int = 0

    def __add__(self, other: RetryResult) -> RetryResult:
        return RetryResult(
            self.evaluated + other.evaluated, self.failed + other.failed, self.expired + other.expired
        )


@retry_conflicts
def retry(
    project_id: int, external_id: str, actor: Actor, seqs: Collection[int] | None = None
) -> RetryResult:
    """Evaluate quarantined events of a session again, each in its place among the others.

    The state of detection is rebuilt from the stored events, so counters that a person or an approval reset count
    again. Findings open incidents. The calls have run, so their verdicts do not change; in-chat commands are not run.

    Parameters
    ----------
    seqs
        Sequence numbers; None for all of the session.

    Returns
    -------
    RetryResult
        An event that fails again stays, with its new error. One that is too old to matter to detection, or whose
        project stores no payloads, is expired: it is removed from the list.

    Raises
    ------
    NotFound
        If the session does not exist, or has no such quarantined event.
    """
    with locked_session_by_name(project_id, external_id) as locked:
        rows = QuarantinedEvent.objects.filter(session=locked.session)
        if seqs is not None:
            rows = rows.filter(seq__in=seqs)
        wanted = set(rows.values_list("seq", flat=True))
        if not wanted:
            raise NotFound
        outcomes = locked.rebuild_tracker(wanted)
        failed = {event.seq for event, outcome in outcomes if isinstance(outcome, Exception)} & wanted
        evaluated = {event.seq for event, _ in outcomes} & wanted - failed
        _apply(locked, outcomes, wanted)
        rows.filter(seq__in=wanted - failed).delete()
        result = RetryResult(len(evaluated), len(failed), len(wanted) - len(failed) - len(evaluated))
        audit.record(
            actor,
            "session.quarantine.retry",
            external_id,
            project_id=project_id,
            after={"evaluated": result.evaluated, "failed": result.failed, "expired": result.expired},
        )
    return result


def retry_all(project_id: int, actor: Actor) -> RetryResult:
    """Retry the quarantined events of up to `MAX_SESSIONS` sessions, each in its own transaction.

    Those that failed longest ago come first, so that what fails again is behind the rest the next time.
    """
    rows = QuarantinedEvent.objects.filter(project_id=project_id).values_list("session__external_id")
    names = rows.annotate(last=Max("at")).order_by("last", "session__external_id")[:MAX_SESSIONS]
    result = RetryResult()
    for external_id, _ in [*names]:
        try:
            result += retry(project_id, external_id, actor)
        except NotFound:  # removed or retried meanwhile
            continue
    return result


def _apply(locked: LockedSession, outcomes: list[Outcome], retried: Collection[int]) -> None:
    """Put the outcomes of retried events, and of results of retried calls, on their rows and incidents."""
    decisions = {event.seq: event.decision for event, _ in outcomes if event.type == EventType.CALL}
    for event, outcome in outcomes:
        is_retried = event.seq in retried
        if isinstance(outcome, Exception):
            if is_retried:
                error = EventEvaluationError(event, outcome)
                locked.events.quarantine(event, str(error), error.traceback)
            continue
        cell = outcome.cell
        if event.type == EventType.RESULT and cell is not None and (is_retried or cell.seq in retried):
            # What the call was answered counts, not what it would be answered now.
            is_blocked = decisions.get(cell.seq, "allow") in BLOCKING
            put = locked.events.put_result_if_reported if is_blocked else locked.events.put_result
            put(cell.seq, call_flags.of_result(cell.result, "allow"))
            event.result_digest = outcome.result_digest or ""
            locked.events.note_evaluated(event)
        elif event.type == EventType.CALL and is_retried:
            event.call_key = outcome.call_key or ""
            event.flags = call_flags.of_call(cell.result if cell else "pending", event.decision)
            locked.events.replace_call(event)
        if is_retried:
            locked.incidents.observe(event.seq, event.tool, outcome, locked.policy_for(event), event)
