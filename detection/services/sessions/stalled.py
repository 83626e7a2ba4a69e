"""Checks silent sessions, and reports stalled calls and runs to operators.

Each session stores when to check it (`silence_check_at`). Workers and beat check every few seconds; if two find the
same session, the one that gets its lock checks it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import structlog

from detection import clock
from detection.engine import silence
from detection.engine.calls import Finding
from detection.engine.silence import Silence
from detection.models import Session, SessionKey, SessionState, call_flags
from detection.models.session_state import STOP_STATES
from detection.services.errors import NotFound
from detection.services.events.event_records import EventRecord
from detection.services.sessions.locked_session import LockedSession, locked_session
from detection.sql.retries import retry_conflicts

log = structlog.get_logger(__name__)

MAX_SESSIONS = 200
LATER = timedelta(seconds=30)
"""Delay before a session with unevaluated events is checked again."""


def report_due(now: datetime | None = None) -> int:
    """Check the sessions whose time has come, and open incidents for what is stalled.

    Parameters
    ----------
    now
        The time up to which sessions are due; the clock of the server without it.

    Returns
    -------
    int
        Number of sessions that were checked. If none is due, one query of a small index.
    """
    now = now or clock.now()
    due = Session.objects.filter(silence_check_at__lte=now).order_by("silence_check_at")
    keys = [SessionKey(*row) for row in due.values_list("project_id", "pk")[:MAX_SESSIONS]]
    for key in keys:
        try:
            _report(key, now)
        except NotFound:
            pass  # Another transaction holds it: it is not silent, or is being looked at.
        except Exception:  # it stays the first that is due; the others must not wait for it
            log.exception("silence_not_checked", session_id=key.session_id)
    return len(keys)


@retry_conflicts
def _report(key: SessionKey, now: datetime) -> None:
    with locked_session(key, wait=False) as locked:
        session = locked.session
        if session.silence_check_at is None or session.silence_check_at > now:
            return
        if session.evaluated_seq < session.last_seq:
            session.silence_check_at = now + LATER
            return
        session.silence_check_at = None
        if session.state in (SessionState.ENDED, *STOP_STATES):
            return  # Its next event has it looked at again.
        policy = locked.policy_for(EventRecord(type=""))
        seconds = silence.shortest_limit(policy)
        if seconds is None:
            return
        if session.state == SessionState.HELD:
            # Its approval is no event: whether the call that it lets go hangs shows later.
            session.silence_check_at = now + timedelta(seconds=seconds)
            return
        moment = Silence(now.timestamp(), session.last_event_at.timestamp(), _reports_results(session))
        findings, due = silence.observe_silence(locked.tracker, moment, policy)
        if due is not None:
            session.silence_check_at = datetime.fromtimestamp(due, UTC)
        locked.incidents.observe_silence(findings, policy, now)
        _log(locked, findings)


def _reports_results(session: Session) -> bool:
    return any(call_flags.has_result(str(cell[2])) for cell in session.strip)


def _log(locked: LockedSession, findings: list[Finding]) -> None:
    for finding in findings:
        log.warning(
            "session_stalled",
            session=locked.session.external_id,
            tool=finding.detail["tool"],
            seconds=finding.count,
            limit=finding.limit,
        )
