"""A session as a row of the list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from detection.console import formatting
from detection.engine.detectors import detector_for
from detection.integrations.reach import CAN_BLOCK, CAN_STOP, REACH_WORDS, WATCH_ONLY
from detection.models import Session, SessionState, StoppedByKind
from detection.models.session_state import STOP_STATES, STOPPED_STATES, shown_state
from detection.selectors.session_rows import SessionRow
from detection.selectors.sessions import NEAR_LIMIT_CALLS, QUIET_AFTER

SHORT_WORDS: Final = {
    SessionState.STOP_UNENFORCED: "Not enforced",
    SessionState.STILL_CALLING: "Still calling",
}
"""What the list says for states whose words are long; the session's page has them whole."""


@dataclass(frozen=True, slots=True)
class StopWords:
    """What a stop does to a session, before it is clicked: the name of the button, and its effect, short and whole."""

    button: str
    short: str
    effect: str


STOP_WORDS = {
    CAN_STOP: StopWords(
        "Stop session",
        "Stops before its next call",
        "No further call runs, and the run ends before its next call.",
    ),
    CAN_BLOCK: StopWords(
        "Block its calls",
        "The agent continues without tools",
        "Every tool call is removed. The agent continues without tools.",
    ),
    WATCH_ONLY: StopWords(
        "Request stop",
        "Cannot be enforced",
        "It only reports its calls, so a stop cannot be enforced. The request is recorded and shown. A call that asks "
        "for a verdict is refused.",
    ),
}
"""By reach."""
_STOP_SENTENCES = {
    CAN_STOP: "{} stops before its next call.",
    CAN_BLOCK: "The next call of {} is blocked, and all further ones.",
    WATCH_ONLY: "Stop of {} requested. It only reports its calls, so the stop cannot be enforced.",
}
"""By reach, after the click."""

STOPPED = "stopped"
"""Begins the tag of the message after a stop; the names of the sessions follow, one in each line."""
BEHIND_AFTER = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A session with its derived values.

    Attributes
    ----------
    short
        The state in a list; `word` has it whole.
    meter_label
        The detector that is near its limit, or empty.
    meter_note
        The same with its count, as a sentence.
    stopped_by, since_stop
        Who asked for a stop, and what has come of it, or empty.
    """

    session: SessionRow | Session
    state: str
    reach: str
    word: str
    short: str
    per_minute: str
    meter_text: str
    meter_label: str
    is_behind: bool
    stopped_by: str
    since_stop: str
    is_at_limit: bool
    meter_note: str


def session_row(session: SessionRow | Session, now: datetime) -> SessionLine:
    """Prepare a session for the list."""
    state = shown_state(session, now)
    word = state.label
    is_at_limit = detector_for(session.meter_kind).is_run_limit and session.meter_count >= session.meter_limit
    if state == SessionState.LOOPING and is_at_limit:
        word = "At a limit"
    minutes = max(1.0, (session.last_event_at - session.started_at).total_seconds() / 60)
    is_quiet = state in STOPPED_STATES or now - session.last_event_at > QUIET_AFTER
    is_over = state in (SessionState.IDLE, SessionState.ENDED)
    is_near_limit = session.meter_count >= NEAR_LIMIT_CALLS and session.meter_limit <= session.meter_count * 2
    is_metered = bool(session.meter_kind) and is_near_limit and not is_over
    meter = detector_for(session.meter_kind).label if is_metered else ""
    of_limit = formatting.of_limit(session.meter_count, session.meter_limit) if session.meter_limit else "–"
    behind = session.pending_since is not None and now - session.pending_since > BEHIND_AFTER
    return SessionLine(
        session,
        state,
        REACH_WORDS[session.reach],
        word,
        SHORT_WORDS.get(state, word),
        "–" if is_quiet or is_over else formatting.compact(session.call_count / minutes),
        of_limit,
        meter,
        behind,
        stopped_by(session) if state in STOP_STATES else "",
        _since_stop(session) if state in STOP_STATES else "",
        is_at_limit,
        f"{meter}: {of_limit}, near the limit" if meter else "",
    )


def stopped_by(session: SessionRow | Session) -> str:
    """Return who stopped a session."""
    return "detection" if session.stopped_by_kind == StoppedByKind.DETECTION else session.stopped_by


def _since_stop(session: SessionRow | Session) -> str:
    """Return what has come of a stop in words."""
    refused, ran = session.refused_since_stop, session.ran_since_stop
    known = [f"{refused:,} refused"] if refused else []
    if ran:
        known += [f"{ran:,} ran" if refused else f"{ran:,} call{'' if ran == 1 else 's'} since"]
    return ", ".join(known) or "no call since"


def stop_outcome(session: Session, now: datetime) -> str:
    """Return the state of a session that was stopped and what has come of it, also after its end."""
    line = session_row(session, now)
    if line.since_stop:
        return f"{line.word} · {line.since_stop}"
    if was_refused(session):
        return f"Stopped · {_since_stop(session)}, then it ended"
    return f"{line.word} · {_since_stop(session)}"


def was_refused(session: SessionRow | Session) -> bool:
    """Return whether a session was stopped and its newest call blocked; of an ended one, whether the stop did it."""
    return bool(session.stopped_by_kind) and session.refused_since_stop > 0 and not session.has_run_last


def stop_sentence(reached: Mapping[str, int], name: str = "") -> str:
    """Return what a stop of sessions does, for the message after it.

    Parameters
    ----------
    reached
        How many there are of each reach.
    name
        The session, if it is one.
    """
    if name and reached:
        return _STOP_SENTENCES[next(iter(reached))].format(formatting.visible(name))
    stops, blocks, watched = (reached.get(one, 0) for one in (CAN_STOP, CAN_BLOCK, WATCH_ONLY))
    parts = [f"stopping {stops:,}"] if stops else []
    parts += [f"blocking the calls of {blocks:,}"] if blocks else []
    parts += [f"stop requested of {watched:,}, which cannot be enforced"] if watched else []
    text = ", ".join(parts) or "no session to stop"
    return f"{text[:1].upper()}{text[1:]}."


def meter_title(kind: str, count: int, limit: int) -> str:
    """Return the count of a meter in words, with the unit that its detector counts in."""
    unit = detector_for(kind).unit if kind else "counted so far"
    return f"{count:,} {unit}, limit {limit:,}" if limit else "nothing counted"
