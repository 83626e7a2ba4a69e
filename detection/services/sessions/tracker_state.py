"""The engine's state of a session: read and written only under the lock of the session's row.

A separate statement reads it after the lock was granted. Joined to the locking query it would date from before the
wait, and a call that waited for another one would undo the counts of that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from detection.engine import fold, interventions, snapshot
from detection.engine.calls import Step, Usage
from detection.engine.identity import Keyer
from detection.engine.memory import State
from detection.engine.policy import Policy
from detection.models import EventType, Session, SessionKey
from detection.services.events import event_records
from detection.services.events.event_records import EventRecord
from detection.sql.pipeline import Rows, Statement, Writes, fetch

log = structlog.get_logger(__name__)

REBUILD_EVENTS = 2000
"""Age of the events from which an outdated state is rebuilt; every window is far shorter."""

Outcome = tuple[EventRecord, Step | Exception]
"""An event, with the step of the engine or the error that it raised."""
_BY_KEY = "SELECT snapshot FROM detection_trackerstate WHERE project_id = %s AND session_id = %s"
_BY_NAME = (
    "SELECT snapshot FROM detection_trackerstate WHERE project_id = %s AND session_id ="
    " (SELECT id FROM detection_session WHERE project_id = %s AND external_id = %s)"
)
_QUARANTINED = "SELECT seq FROM detection_quarantinedevent WHERE project_id = %s AND session_id = %s"
_CREATE = (
    "INSERT INTO detection_trackerstate (project_id, session_id, version, snapshot) VALUES (%s, %s, %s, %s)"
    " ON CONFLICT (project_id, session_id) DO UPDATE SET version = excluded.version, snapshot = excluded.snapshot,"
    " updated_at = excluded.updated_at"
)
WRITE = (
    "UPDATE detection_trackerstate SET version = %s, snapshot = %s, updated_at = now()"
    " WHERE project_id = %s AND session_id = %s"
)


def by_key(key: SessionKey) -> Statement:
    """Return the statement that reads the state of a session, to be sent after the one that locks it."""
    return Statement(_BY_KEY, key, binary=True)


def by_name(project_id: int, external_id: str) -> Statement:
    """Return the same statement for a session that is known by its name."""
    return Statement(_BY_NAME, (project_id, project_id, external_id), binary=True)


def load(rows: Rows, session: Session, policy_for: Callable[[EventRecord], Policy], keyer: Keyer) -> State:
    """Load the state of a locked session; a new one where it has none, a rebuilt one where its version is outdated.

    Parameters
    ----------
    rows
        What the statement returned.
    """
    if not rows:
        return fold.new_state()
    try:
        return snapshot.load(bytes(rows[0][0]))
    except snapshot.SnapshotVersionError:
        return rebuild(session, policy_for, keyer)[0]


def add_write(writes: Writes, key: SessionKey, state: State, *, is_stored: bool) -> None:
    """Add the write of a locked session's state.

    Parameters
    ----------
    is_stored
        Whether the table has a state of the session, as read under the lock.
    """
    if is_stored:
        writes.add(WRITE, [snapshot.VERSION, snapshot.dump(state), *key], ends_in_condition=True)
    else:
        writes.add(_CREATE, [*key, snapshot.VERSION, snapshot.dump(state)])


def rebuild(
    session: Session,
    policy_for: Callable[[EventRecord], Policy],
    keyer: Keyer,
    retried: Collection[int] = (),
) -> tuple[State, list[Outcome]]:
    """Fold the session's recent events again, without those that are quarantined; the stored events do not change.

    Without stored payloads, all calls of a tool look the same, so the state begins anew.

    Parameters
    ----------
    retried
        Sequence numbers of quarantined events that are folded all the same. One that raises leaves no trace.

    Returns
    -------
    tuple
        The state, and the outcomes of all events that are stored and recent enough. Folding 2,000 costs a fifth of a
        second; an event of `retried` costs as much as ten others.
    """
    state = fold.new_state()
    if not session.project.stores_payloads:
        _note_used(state, session, policy_for)
        return state, []
    skipped = {seq for (seq,) in fetch(_QUARANTINED, session.key)}.difference(retried)
    outcomes: list[Outcome] = []
    events = event_records.last(session.key, session.evaluated_seq, REBUILD_EVENTS)
    for event in events:
        if event.seq in skipped:
            continue
        before = snapshot.dump(state) if event.seq in retried else None
        try:
            outcomes.append((event, _observe(state, event, policy_for(event), keyer)))
        except Exception as error:
            # One that was evaluated before raises only after a change of the engine. The others still count.
            log.exception("event_not_rebuilt", session=session.external_id, seq=event.seq)
            outcomes.append((event, error))
            if before is not None:
                state = snapshot.load(before)
    if not events or events[0].seq > 1:
        # The session counts calls that the engine never saw: those of a stopped run. So only without its beginning.
        _note_used(state, session, policy_for)
    return state, outcomes


def _note_used(state: State, session: Session, policy_for: Callable[[EventRecord], Policy]) -> None:
    """Note what the session has used before the events that were folded again; limits of its whole life count it."""
    used = Usage(session.started_at.timestamp(), session.token_count, float(session.cost_usd))
    fold.note_used(state, session.call_count, used, policy_for(EventRecord(type=EventType.CALL)))


def _observe(state: State, event: EventRecord, policy: Policy, keyer: Keyer) -> Step:
    if event.verdict is not None and event.verdict.stopped_by:
        return Step()
    step = fold.observe(state, event, policy, keyer)
    if event.type == EventType.CALL:
        if event.decision == "hold" and step.verdict.finding is not None:
            # What became of its approval is not stored with the call; most are closed by now.
            interventions.close_hold(state, step.verdict.finding.calls_digest)
        if event.decision == "allow" and step.verdict.ending == "delay":
            interventions.run_after_pause(state, event.seq)
    return step
