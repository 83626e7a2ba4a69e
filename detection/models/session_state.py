"""The state of a session: its values, how the write side derives it, and what readers add to it.

This is the only definition. Lists, counts, badges, filters, the API and the metrics read it from here.

Precedence, strongest first: ended, the states of a stop, held, looping, running. A stop is what was asked for, its
state is what has happened: `stopped` and `calls_blocked` need a refused call, until then it is `stopping`. A session
that only reports its calls cannot be stopped (`stop_unenforced`), and one of which a call ran since the stop is
`still_calling`, while it calls.

The write side, under the session's row lock:

1. calls `note_verdict` for every call it folds, with the verdict that the call got, and again with the final decision
   when an approval of a held call is closed;
2. calls `begin_stop` when a person or a containment stops the session, `note_refused` for every call or request that it
   is refused since,
   `note_ran` for every call that runs nevertheless, `note_reach` when a run shows that a stop does less to it than its
   integration promises, and `clear_stop` when a person resumes it;
3. before it saves the row, sets ``session.state = derive_state(session, ...)``. A loop is active while
   its incident has no `ended_at`, nobody labelled it "not a loop", and its held call was not allowed since it was found
   last; `last_loop_call_at` is the time of the newest call of such a loop.

Time alone changes four states as they are shown, and none as it is stored: `looping` becomes `silent` when the loop has
no call for `settings.LOOPING_FOR`, `still_calling` becomes `stop_unenforced` without an event for as long, `running`
becomes `idle` after `IDLE_AFTER`, and every state but `held` becomes `ended` after `ENDED_AFTER`. They follow from the
row: `shown_state` for a row in hand, `state_condition` for a filter and `shown_state_expression` for counting. The
three agree.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Protocol

from django.conf import settings
from django.db import models
from django.db.models import Case, F, Q, Value, When

from detection import clock
from detection.integrations.reach import CAN_STOP, WATCH_ONLY, Reach, reach_of, weakest, weakest_of
from detection.models import call_flags

IDLE_AFTER = timedelta(minutes=10)
"""A running session without an event for longer than this is idle; what it calls then is another task."""
ENDED_AFTER = timedelta(hours=1)
"""A session without an event for longer than this has ended, unless its newest call is open."""
OPEN_CALL_ENDED_AFTER = timedelta(days=1)
"""How long an open call is waited for: its result may never come."""


class SessionState(models.TextChoices):
    """The states. `silent` and `idle` are never stored, and `ended` only if the end was reported."""

    RUNNING = "running", "Running"
    LOOPING = "looping", "Looping now"
    SILENT = "silent", "Silent in a loop"
    HELD = "held", "Held"
    STOPPING = "stopping", "Stopping"
    STOPPED = "stopped", "Stopped"
    CALLS_BLOCKED = "calls_blocked", "Calls blocked"
    STOP_UNENFORCED = "stop_unenforced", "Stop requested, cannot be enforced"
    STILL_CALLING = "still_calling", "Still calling after the stop"
    IDLE = "idle", "Idle"
    ENDED = "ended", "Ended"


class StoppedByKind(models.TextChoices):
    """Who stopped a session, if it is to be stopped."""

    NOBODY = "", "Not stopped"
    PERSON = "person", "Person"
    DETECTION = "detection", "Detection"
    CONTAINMENT = "containment", "Containment"


HELD_DOWN = (StoppedByKind.PERSON, StoppedByKind.CONTAINMENT)
"""Who stopped a session that no verdict on a call lets go on: a person resumes it, or the containment is lifted."""


STOPPED_STATES = (SessionState.STOPPED, SessionState.CALLS_BLOCKED)
"""Of a session whose calls were blocked since the stop, and do not run until something changes."""
STOP_STATES = (
    SessionState.STOPPING,
    *STOPPED_STATES,
    SessionState.STOP_UNENFORCED,
    SessionState.STILL_CALLING,
)
"""Of a session that is to be stopped, whatever has come of it."""
CALLING_STATES = (SessionState.LOOPING, SessionState.STOP_UNENFORCED, SessionState.STILL_CALLING)
"""Stored states in which the calls of a loop run."""
STORED_STATES = tuple(
    state for state in SessionState if state not in (SessionState.IDLE, SessionState.SILENT)
)
RARE_STATES = tuple(
    state for state in STORED_STATES if state not in (SessionState.RUNNING, SessionState.ENDED)
)
"""Stored states with an index of their own."""


class HasState(Protocol):
    """The fields of a session that its state depends on."""

    state: str
    integration: str
    call_reaches: str
    reach: str
    strip: Any
    ended_at: datetime | None
    has_open_call: bool
    last_loop_call_at: datetime | None
    stopped_by_kind: str
    stopped_at: datetime | None
    stopped_by: str
    stop_reason: str
    stop_reach: str
    refused_since_stop: int
    ran_since_stop: int
    has_run_last: bool
    seen_reach: str
    would_have_stopped_at_call: int | None


class ShowsState(Protocol):
    """The fields of a session that its state at a moment depends on."""

    @property
    def state(self) -> str:
        """As stored."""

    @property
    def last_event_at(self) -> datetime:
        """When the newest event was received."""

    @property
    def last_loop_call_at(self) -> datetime | None:
        """The newest call of the loop that it is in."""

    @property
    def has_open_call(self) -> bool:
        """Whether its newest call has no result yet."""


def derive_state(
    session: HasState, *, has_open_approval: bool, last_loop_call_at: datetime | None
) -> SessionState:
    """Set the reach of a session, its open call and its loop, and return the state to store.

    Parameters
    ----------
    has_open_approval
        Whether a call of the session is held. One that is stopped or has ended holds none.
    last_loop_call_at
        The newest call of its active loops, None without any.

    Returns
    -------
    SessionState
        One of `STORED_STATES`. Costs no query.
    """
    session.last_loop_call_at, session.has_open_call = last_loop_call_at, call_flags.is_open(session.strip)
    promised = weakest(session.call_reaches) or reach_of(session.integration)
    session.reach = promised
    if session.seen_reach:
        session.reach = weakest_of((promised, session.seen_reach)) or promised
    if session.ended_at is not None:
        return SessionState.ENDED
    if session.stopped_by_kind:
        if session.has_run_last:
            was_asking = session.refused_since_stop or session.stop_reach != WATCH_ONLY
            return SessionState.STILL_CALLING if was_asking else SessionState.STOP_UNENFORCED
        if session.refused_since_stop:
            return SessionState.STOPPED if session.reach == CAN_STOP else SessionState.CALLS_BLOCKED
        is_watched = session.stop_reach == WATCH_ONLY
        return SessionState.STOP_UNENFORCED if is_watched else SessionState.STOPPING
    if has_open_approval:
        return SessionState.HELD
    return SessionState.RUNNING if last_loop_call_at is None else SessionState.LOOPING


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

    A guarded call answered `stop` stops the session, and a later call that is allowed (`allow` or `warn`) ends that.
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
    if not is_guarded:
        if decision == "stop" and session.would_have_stopped_at_call is None:
            session.would_have_stopped_at_call = call_number
    elif session.stopped_by_kind in HELD_DOWN:
        return
    elif decision == "stop":
        # The stop continues with another reason: what has come of it so far still counts.
        refused, ran = session.refused_since_stop, session.ran_since_stop
        begin_stop(session, StoppedByKind.DETECTION, at, by, reason)
        session.refused_since_stop, session.ran_since_stop = refused, ran
        note_refused(session)
    elif decision in ("allow", "warn") and session.stopped_by_kind:
        clear_stop(session)


def begin_stop(session: HasState, kind: StoppedByKind, at: datetime, by: str, reason: str) -> None:
    """Record that a session is to be stopped; nothing has come of it yet. Changes the row in memory only."""
    session.stopped_by_kind, session.stopped_at = kind, at
    session.stopped_by, session.stop_reason = by[:150], reason[:300]
    session.stop_reach = session.reach
    session.refused_since_stop = session.ran_since_stop = 0
    session.has_run_last = False


def note_refused(session: HasState) -> None:
    """Record that a call or a request was blocked because the session is stopped; changes the row in memory only."""
    session.refused_since_stop += 1
    # Of a run that makes its refused calls, one more refusal is no evidence that it stopped.
    session.has_run_last = session.seen_reach == WATCH_ONLY and session.ran_since_stop > 0


def note_ran(session: HasState) -> None:
    """Record that a call ran although the session is to be stopped; changes the row in memory only."""
    session.ran_since_stop += 1
    session.has_run_last = True


def note_reach(session: HasState, reach: Reach) -> None:
    """Record that a stop does no more than this to the run of a session; changes the row in memory only."""
    session.seen_reach = weakest_of((reach, session.seen_reach)) or reach


def clear_stop(session: HasState) -> None:
    """Forget who stopped the session; changes the row in memory only."""
    session.stopped_by_kind, session.stopped_at = StoppedByKind.NOBODY, None
    session.stopped_by = session.stop_reason = session.stop_reach = ""
    session.refused_since_stop = session.ran_since_stop = 0
    session.has_run_last = False


def shown_state(row: ShowsState, now: datetime | None = None) -> SessionState:
    """Return the state of a row at a moment."""
    state, now = SessionState(row.state), now or clock.now()
    if state in (SessionState.HELD, SessionState.ENDED):
        return state
    silent_for = now - row.last_event_at
    if silent_for > (OPEN_CALL_ENDED_AFTER if row.has_open_call else ENDED_AFTER):
        return SessionState.ENDED
    if state == SessionState.LOOPING:
        is_silent = row.last_loop_call_at is None or now - row.last_loop_call_at > settings.LOOPING_FOR
        return SessionState.SILENT if is_silent else state
    if state == SessionState.STILL_CALLING and silent_for > settings.LOOPING_FOR:
        return SessionState.STOP_UNENFORCED
    return SessionState.IDLE if state == SessionState.RUNNING and silent_for > IDLE_AFTER else state


def is_in_loop(row: ShowsState, now: datetime | None = None) -> bool:
    """Return whether the run of a row is in a loop at a moment, whatever else its state says."""
    return row.last_loop_call_at is not None and shown_state(row, now) != SessionState.ENDED


def _alive(now: datetime) -> Q:
    """Return the condition of sessions that no silence has ended."""
    return (
        Q(last_event_at__gte=now - ENDED_AFTER)
        | Q(has_open_call=True, last_event_at__gte=now - OPEN_CALL_ENDED_AFTER)
        | Q(state=SessionState.HELD)
    )


def state_condition(state: str, now: datetime | None = None) -> Q:
    """Return the condition of sessions whose shown state is `state`, for filters."""
    now = now or clock.now()
    if state == SessionState.ENDED:
        return Q(state=SessionState.ENDED) | ~_alive(now)
    if state == SessionState.HELD:
        return Q(state=SessionState.HELD)
    is_looping = Q(last_loop_call_at__gte=now - settings.LOOPING_FOR)
    is_active = Q(last_event_at__gte=now - IDLE_AFTER)
    calls = Q(last_event_at__gte=now - settings.LOOPING_FOR)
    stored = {
        SessionState.LOOPING: Q(state=SessionState.LOOPING) & is_looping,
        SessionState.SILENT: Q(state=SessionState.LOOPING)
        & (Q(last_loop_call_at=None) | Q(last_loop_call_at__lt=now - settings.LOOPING_FOR)),
        SessionState.STILL_CALLING: Q(state=SessionState.STILL_CALLING) & calls,
        SessionState.STOP_UNENFORCED: Q(state=SessionState.STOP_UNENFORCED)
        | (Q(state=SessionState.STILL_CALLING) & ~calls),
        SessionState.RUNNING: Q(state=SessionState.RUNNING) & is_active,
        SessionState.IDLE: Q(state=SessionState.RUNNING) & ~is_active,
    }
    return stored.get(SessionState(state), Q(state=state)) & _alive(now)


def not_ended_condition(now: datetime | None = None) -> Q:
    """Return the condition of sessions that have not ended, for filters."""
    return ~Q(state=SessionState.ENDED) & _alive(now or clock.now())


def to_stop_condition(now: datetime | None = None) -> Q:
    """Return the condition of sessions that have not ended and are to be stopped, whatever has come of it."""
    return Q(state__in=STOP_STATES) & _alive(now or clock.now())


def in_loop_condition(now: datetime | None = None) -> Q:
    """Return the condition of sessions that are in a loop, for filters; see `is_in_loop`."""
    is_over = Q(state=SessionState.ENDED)
    return Q(last_loop_call_at__isnull=False) & ~is_over & _alive(now or clock.now())


def looping_now_condition(now: datetime | None = None) -> Q:
    """Return the condition of sessions in which calls of a loop run now, those that a stop does not reach included."""
    since = (now or clock.now()) - settings.LOOPING_FOR
    return Q(state__in=CALLING_STATES, last_loop_call_at__gte=since) & _alive(now or clock.now())


def shown_state_expression(now: datetime | None = None) -> Case:
    """Return the shown state as an expression, for grouping and counting."""
    derived = (SessionState.ENDED, SessionState.SILENT, SessionState.STOP_UNENFORCED, SessionState.IDLE)
    return Case(
        *(When(state_condition(state, now), then=Value(state.value)) for state in derived),
        default=F("state"),
        output_field=models.CharField(),
    )
