"""An agent that speaks to the services as one does over the API, and the operator who watches it."""

from __future__ import annotations

import itertools

from detection.services.audit import Actor
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import GuardRequest, guard
from detection.services.ingestion.ingest import ingest

OPERATOR = Actor("ana")


class Agent:
    """One agent in one session; call ids count up by themselves."""

    def __init__(self, principal, session="s-1", **about):
        self.principal, self.session, self.about = principal, session, about
        self._ids = itertools.count()

    def call(self, tool="search_web", arguments='{"q": "reset password"}', call_id=None, **more):
        call_id = call_id or f"call_{next(self._ids)}"
        return EventRecord(
            type="call", session=self.session, call_id=call_id, tool=tool, arguments=arguments, **more
        )

    def result(self, call_id, content="0 hits", is_error=False, **more):
        return EventRecord(
            type="result", session=self.session, call_id=call_id, content=content, is_error=is_error, **more
        )

    def asks(self, *calls, results=()):
        request = GuardRequest(
            session=self.session, calls=calls or (self.call(),), results=tuple(results), **self.about
        )
        return guard(self.principal, request)

    def posts(self, *events):
        return ingest(self.principal, events)
