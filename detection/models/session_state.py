"""The state of a session: its values, how the write side derives it, and how readers add idleness.

This is the only definition. Lists, counts, badges, filters, the API and the metrics read it from here.

Precedence, strongest first: ended, stopped by a person or a containment, held, stopped by detection, looping, idle,
running. Where the host of a session cannot end a run, one that is stopped has the state `calls_blocked` instead of
`stopped`.

The write side, under the session's row lock:

1. calls `note_verdict` for every call it folds, with the verdict that the call got, and again with the final decision
   when an approval of a held call is closed;
2. sets `stopped_by_kind` to `PERSON`, with `stopped_at`, `stopped_by` and `stop_reason`, when a person stops the
   session, and calls `clear_stop` when a person resumes it; `CONTAINMENT` while a containment stops all its calls;
3. before it saves the row, sets ``session.state = derive_state(session, has_open_approval=..., has_active_loop=...)``.
   A loop is active while its incident has no `ended_at`, nobody labelled it "not a loop", and its held call was not
   allowed since it was found last.

`idle` is never stored. It follows from the age of the last event: `shown_state` for a row in hand, `state_condition`
for a filter and `shown_state_expression` for counting. The three agree.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.utils import timezone

from detection.integrations.hosts import can_end_run

IDLE_AFTER = timedelta(minutes=5)
"""A running session without an event for longer than this is idle."""


class SessionState(models.TextChoices):
    """The seven states. All but `idle` are stored."""

    RUNNING = "running", "Running"
    LOOPING = "looping", "Looping"
    HELD = "held", "Held"
    STOPPED = "stopped", "Stopped"
    CALLS_BLOCKED = "calls_blocked", "Calls blocked"
    IDLE = "idle", "Idle"
    ENDED = "ended", "Ended"


class StoppedByKind(models.TextChoices):
    """Who stopped a session, if it is stopped."""

    NOBODY = "", "Not stopped"
    PERSON = "person", "Person"
    DETECTION = "detection", "Detection"
    CONTAINMENT = "containment", "Containment"


HELD_DOWN = (StoppedByKind.PERSON, StoppedByKind.CONTAINMENT)
"""Who stopped a session that no verdict on a call lets go on: a person resumes it, or the containment is lifted."""


STOPPED_STATES = (SessionState.STOPPED, SessionState.CALLS_BLOCKED)
"""Of a session whose calls do not run until something changes."""
STORED_STATES = tuple(state for state in SessionState if state != SessionState.IDLE)


class HasState(Protocol):
    """The fields of a session that its state depends on."""

    state: str
    ended_at: datetime | None
    integration: str
    stopped_by_kind: str
    stopped_at: datetime | None
    stopped_by: str
    stop_reason: str
    would_have_stopped_at_call: int | None


def derive_state(session: HasState, *, has_open_approval: bool, has_active_loop: bool) -> SessionState:
    """Return the state to store.

    Parameters
    ----------
    session
        Only `ended_at`, `stopped_by_kind` and `integration` are read; nothing is changed.
    has_open_approval
        Whether a call of the session is held.
    has_active_loop
        Whether an incident of the session is active and not labelled "not a loop".

    Returns
    -------
    SessionState
        One of `STORED_STATES`. Costs no query.
    """
    if session.ended_at is not None:
        return SessionState.ENDED
    stopped = SessionState.STOPPED if can_end_run(session.integration) else SessionState.CALLS_BLOCKED
    if session.stopped_by_kind in HELD_DOWN:
        return stopped
    if has_open_approval:
        return SessionState.HELD
    if session.stopped_by_kind == StoppedByKind.DETECTION:
        return stopped
    return SessionState.LOOPING if has_active_loop else SessionState.RUNNING


def note_verdict(
    session: HasState,
    decision: str,
    by: str = "",
    reason: str = "",
    *,
    is_guarded: bool,
    call_number: int,
    at: datetime,
) -> None:
    """Update who stopped the session according to a verdict; changes the row in memory only.

    A guarded call answered `stop` stops the session, and the next call that is allowed (`allow` or `warn`) ends that.
    An observed call has run already: where it would have been stopped, only `would_have_stopped_at_call` is set, once.
    The stop of a person or a containment is left as it is.

    Parameters
    ----------
    decision
        The final verdict: `allow`, `warn`, `block`, `hold` or `stop`.
    is_guarded
        Whether an agent waited for this verdict.
    call_number
        Number of the call within its session, from 1.
    at
        Server time of the call.
    by
        Detector that decided, for `stop`.
    reason
        The finding in words, for `stop`; cut at 300 characters.
    """
    if session.stopped_by_kind in HELD_DOWN:
        return
    if decision == "stop" and not is_guarded:
        if session.would_have_stopped_at_call is None:
            session.would_have_stopped_at_call = call_number
    elif decision == "stop":
        session.stopped_by_kind, session.stopped_at = StoppedByKind.DETECTION, at
        session.stopped_by, session.stop_reason = by[:150], reason[:300]
    elif decision in ("allow", "warn") and session.stopped_by_kind:
        clear_stop(session)


def clear_stop(session: HasState) -> None:
    """Forget who stopped the session; changes the row in memory only."""
    session.stopped_by_kind, session.stopped_at = StoppedByKind.NOBODY, None
    session.stopped_by, session.stop_reason = "", ""


def shown_state(state: str, last_event_at: datetime, now: datetime | None = None) -> SessionState:
    """Return the state of a stored row at a moment: a running session that was silent for `IDLE_AFTER` is idle."""
    is_idle = state == SessionState.RUNNING and last_event_at < (now or timezone.now()) - IDLE_AFTER
    return SessionState.IDLE if is_idle else SessionState(state)


def state_condition(state: str, now: datetime | None = None) -> Q:
    """Return the condition of sessions whose shown state is `state`, for filters."""
    silent_since = (now or timezone.now()) - IDLE_AFTER
    if state == SessionState.IDLE:
        return Q(state=SessionState.RUNNING, last_event_at__lt=silent_since)
    if state == SessionState.RUNNING:
        return Q(state=SessionState.RUNNING, last_event_at__gte=silent_since)
    return Q(state=state)


def shown_state_expression(now: datetime | None = None) -> Case:
    """Return the shown state as an expression, for grouping and counting."""
    return Case(
        When(state_condition(SessionState.IDLE, now), then=Value(SessionState.IDLE.value)),
        default=F("state"),
        output_field=models.CharField(),
    )
