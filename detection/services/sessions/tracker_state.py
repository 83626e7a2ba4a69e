"""The engine's state of a session: read and written only under the lock of the session's row.

A separate statement reads it after the lock was granted. Joined to the locking query it would date from before the wait,
and a call that waited for another one would undo the counts of that one.
"""

from __future__ import annotations

from collections.abc import Callable

from detection.engine import fold, snapshot
from detection.engine.calls import Message
from detection.engine.identity import Keyer
from detection.engine.memory import State
from detection.engine.policy import Policy
from detection.models import EventType, Session
from detection.services.sessions import event_records
from detection.services.sessions.event_records import EventRecord
from detection.sql.pipeline import Writes, fetch

REBUILD_EVENTS = 2000
"""How far back a state of an outdated version is rebuilt; every window is far shorter."""

_READ = "SELECT snapshot FROM detection_trackerstate WHERE session_id = %s"
_WRITE = (
    "INSERT INTO detection_trackerstate (session_id, version, snapshot) VALUES (%s, %s, %s)"
    " ON CONFLICT (session_id) DO UPDATE SET version = excluded.version, snapshot = excluded.snapshot, updated_at = now()"
)


def read(session: Session, policy_for: Callable[[EventRecord], Policy], keyer: Keyer) -> State:
    """Load the state of a locked session; a new one where it has none, a rebuilt one where its version is outdated."""
    found = fetch(_READ, [session.pk])
    if not found:
        return fold.new_state()
    try:
        return snapshot.load(bytes(found[0][0]))
    except snapshot.SnapshotVersionError:
        return _rebuilt(session, policy_for, keyer)


def add_write(writes: Writes, session_id: int, state: State) -> None:
    """Add the write of a locked session's state."""
    writes.add(_WRITE, [session_id, snapshot.VERSION, snapshot.dump(state)])


def _rebuilt(session: Session, policy_for: Callable[[EventRecord], Policy], keyer: Keyer) -> State:
    """Fold the session's recent events again; the stored events do not change."""
    state = fold.new_state()
    for event in event_records.last(session.pk, session.evaluated_seq, REBUILD_EVENTS):
        policy = policy_for(event)
        if event.type == EventType.CALL and event.decision != "stop":
            fold.observe_call(state, event, policy, keyer)
        elif event.type == EventType.RESULT:
            fold.observe_result(state, event, policy, keyer)
        elif event.type == EventType.MESSAGE:
            fold.observe_message(state, Message(at=event.received_at.timestamp(), seq=event.seq), policy)
    return state
