"""An agent that speaks to the services as one does over the API, and the operator who watches it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from detection.services.audit import Actor
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import GuardRequest, GuardResponse, guard
from detection.services.ingestion.ingest import Accepted, ingest
from detection.services.keys import Principal

OPERATOR = Actor("ana")


class Agent:
    """One agent in one session; call ids count up by themselves."""

    def __init__(self, principal: Principal, session: str = "s-1", **about: Any) -> None:
        self.principal, self.session, self.about = principal, session, about
        self._ids = itertools.count()

    def call(
        self,
        tool: str = "search_web",
        arguments: str = '{"q": "reset password"}',
        call_id: str | None = None,
        **more: Any,
    ) -> EventRecord:
        call_id = call_id or f"call_{next(self._ids)}"
        return EventRecord(
            type="call", session=self.session, call_id=call_id, tool=tool, arguments=arguments, **more
        )

    def result(
        self, call_id: str, content: str = "0 hits", is_error: bool = False, **more: Any
    ) -> EventRecord:
        return EventRecord(
            type="result", session=self.session, call_id=call_id, content=content, is_error=is_error, **more
        )

    def asks(self, *calls: EventRecord, results: Iterable[EventRecord] = ()) -> GuardResponse:
        request = GuardRequest(
            session=self.session, calls=calls or (self.call(),), results=tuple(results), **self.about
        )
        return guard(self.principal, request)

    def posts(self, *events: EventRecord) -> Accepted:
        return ingest(self.principal, events)
