"""The floor of the guard: a view that writes what a guard call writes, with its statements, and does nothing else.

No key is checked, no body is parsed and the engine is not asked: what a guard call takes beyond this is its own.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from benchmarks import requests
from detection.api import guard_parsing
from detection.engine import snapshot
from detection.models import Project
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import guard
from detection.services.keys import Principal
from detection.services.sessions import session_rows, tracker_state
from detection.services.sessions.event_changes import EventChanges
from detection.services.sessions.recent_sessions import RecentSession, recent_sessions
from detection.services.sessions.session_rows import KnownRows, RowVersions
from detection.sql.pipeline import Writes

_CALLS_BEFORE: Final = requests.CALLS_PER_SESSION // 2
"""Calls of a session before the first that is measured, for a state and a strip of the usual size."""


class _Session:
    """A session that a client writes, with what its next call writes."""

    def __init__(self, name: str) -> None:
        principal = Principal.of_project(Project.objects.get(slug="default"), "floor", ())
        self._events: tuple[EventRecord, ...] = ()
        for number in range(1, _CALLS_BEFORE):
            body = requests.guard(0, number)[1]
            request, _ = guard_parsing.guard_of(guard_parsing.guard_body(body), len(body), "guard")
            request = replace(request, session=name)
            guard(principal, request)
            self._events = request.events
        recent = recent_sessions.take(principal.project_id, name)
        assert isinstance(recent, RecentSession)
        self._session, self._saved, self._versions = recent.session, recent.saved, recent.versions
        self._state = snapshot.dump(recent.tracker)

    def write(self) -> None:
        """Write a call and the result of the one before it."""
        session, changes, writes = self._session, EventChanges(self._session), Writes()
        result, call = (
            replace(event, seq=session.last_seq + place, call_id=f"c{session.last_seq + place}")
            for place, event in enumerate(self._events, start=1)
        )
        changes.put_result(session.last_seq, "s")
        changes.store((result, call))
        changes.add_call(call)
        changes.add_writes(writes)
        session.last_seq = session.evaluated_seq = call.seq
        session.call_count += 1
        writes.add(tracker_state.WRITE, [snapshot.VERSION, self._state, *session.key], ends_in_condition=True)
        values = session_rows.saved_values(session)
        known = KnownRows(session.key, self._versions, (), 0)
        saving = session_rows.save_if_known(known, self._saved, values)
        assert saving is not None
        ((place, written_by),) = writes.send_after(saving)
        self._saved, self._versions = (
            values,
            RowVersions(place, written_by, self._versions.project, written_by),
        )


_sessions: dict[str, _Session] = {}


@csrf_exempt
def floor(request: HttpRequest) -> JsonResponse:
    """Write a call of the client that the query names; each sends one request at a time."""
    name = f"floor-{os.getpid()}-{request.META['QUERY_STRING']}"
    if name not in _sessions:
        _sessions[name] = _Session(name)
    _sessions[name].write()
    return JsonResponse({"session": name})
