"""Sessions whose agent is played: it asks before its calls, or reports them, at times of the past.

The same folding as of a request, in one transaction for the whole run, so that the verdicts are those that the agent
would have got. Nobody is alerted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from detection import clock
from detection.services.events.event_records import EventRecord
from detection.services.ingestion import guard, ingest
from detection.services.ingestion.guard import GuardRequest, GuardResponse
from detection.services.keys import Principal
from detection.services.sessions.folding import Folding, Quarantine
from detection.services.sessions.locked_session import LockedSession, locked_session_of_agent


class PlayedSession:
    """A session of one run; see `played_session`. Costs the folding of its events, and no query for most of them.

    Parameters
    ----------
    integration
        What sends the calls, as in `Session.integration`; ``events`` for one that reports them.
    """

    def __init__(self, locked: LockedSession, principal: Principal, integration: str) -> None:
        self._locked, self._principal, self._integration = locked, principal, integration
        self._folding = Folding(locked, Quarantine(id))

    def ask(self, request: GuardRequest, at: datetime) -> GuardResponse:
        """Judge the calls of a request at a time that is not before that of the last one."""
        ingest.prepare(request.events, self._principal)
        session, self._folding.integration = self._locked.session, request.integration
        session.note_sender(
            request.integration, request.agent, request.backend, request.model, "", self._principal.public_id
        )
        session.last_event_at = at
        with clock.at(at):
            return guard.judge(self._folding, request)

    def report(self, events: Sequence[EventRecord], at: datetime) -> None:
        """Store and fold events that an agent reports; its calls have run."""
        ingest.prepare(events, self._principal)
        session, self._folding.integration = self._locked.session, ""
        self._locked.incidents.is_guarded = False
        session.last_event_at = at
        with clock.at(at):
            for event in events:
                session.note_sender(
                    self._integration, event.agent, event.backend, event.model, "", self._principal.public_id
                )
                ingest.number(event, session, at, self._locked.identity)
                self._folding.fold(event)
        self._locked.events.store(events)
        session.evaluated_seq = session.last_seq


@contextmanager
def played_session(
    principal: Principal, name: str, integration: str, at: datetime
) -> Iterator[PlayedSession]:
    """Create a session that is played, or continue one, at a time of the past; stored at the end of the block."""
    with clock.at(at), locked_session_of_agent(principal, name) as locked:
        if not locked.session.last_seq:
            locked.session.started_at = at
        yield PlayedSession(locked, principal, integration)
