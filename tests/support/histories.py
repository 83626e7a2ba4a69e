"""Plays histories of events to the services in chosen transactions, and reads all rows that result from them.

A history is a list of requests: a dictionary is an event that is posted, a tuple of results and calls is a guard request. Posted
events may be split into batches anywhere; a guard request is one transaction however it is played.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import orjson
from django.db.models import Model

from detection.engine import snapshot
from detection.models import (
    AlertEvent,
    Approval,
    Event,
    Incident,
    IncidentActivity,
    LimitNotice,
    Session,
    TrackerState,
)
from detection.models.stored_verdict import StoredVerdict
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.guard import GuardRequest, guard
from detection.services.ingestion.ingest import ingest
from detection.services.keys import Principal
from detection.services.sessions.evaluation import evaluate
from detection.services.sessions.locked_session import locked_session

_LATEST_TIMES = 1e9
"""Larger floating-point numbers in a tracker state are times."""
_OF_TIME = {
    "received_at", "started_at", "last_event_at", "last_loop_call_at", "ended_at", "pending_since", "stopped_at", "changed_xid", "opened_at", "last_seen_at",
    "done_at", "updated_at", "at", "created_at", "requested_at", "deadline", "decided_at", "delivered_at", "seen_at",
    "window_seconds",
}  # fmt: skip
_WINDOW_OF_REACTION = 7
"""Place of the measured seconds in the reaction of a record."""
_SECONDS = re.compile(r"\b(one second|[\d.,]+ ?s(econds?)?)\b")
_OF_PLACE = {
    "id",
    "pk",
    "session",
    "session_id",
    "project",
    "project_id",
    "external_id",
    "incident",
    "incident_id",
    "session_name",
}


def play(
    principal: Principal,
    session: str,
    history: Iterable[dict[str, Any] | tuple[list[dict[str, Any]], list[dict[str, Any]]]],
    sizes: Iterable[int] | None = None,
    evaluates: Iterable[bool] | None = None,
) -> Session:
    """Send a history to a new session, and evaluate it.

    Parameters
    ----------
    sizes
        How many events each batch has at most, one by default; a guard request ends a batch.
    evaluates
        Whether a worker evaluates the session after each batch; it does at the end.
    """
    next_sizes, next_evaluates = iter(sizes or itertools.repeat(1)), iter(evaluates or itertools.repeat(True))
    batch: list[EventRecord] = []
    size = next(next_sizes)

    def post() -> None:
        nonlocal size
        if batch:
            ingest(principal, [*batch])
            batch.clear()
            size = next(next_sizes)
            if next(next_evaluates):
                evaluate(Session.objects.get(project_id=principal.project_id, external_id=session).key)

    for item in history:
        if isinstance(item, dict):
            batch.append(EventRecord(session=session, **item))
            if len(batch) >= size:
                post()
            continue
        post()
        results, calls = (
            tuple(EventRecord(session=session, type=kind, **one) for one in part)
            for kind, part in zip(("result", "call"), item, strict=True)
        )
        guard(principal, GuardRequest(session=session, results=results, calls=calls))
    post()
    row = Session.objects.get(project_id=principal.project_id, external_id=session)
    evaluate(row.key)
    row.refresh_from_db()
    return row


def rows(session: Session) -> dict[str, list[Any]]:
    """Return every row of a session but for times, names and ids that chance assigns."""
    incidents = [*Incident.objects.filter(session=session).order_by("pk")]
    names = {one.public_id: f"incident-{number}" for number, one in enumerate(incidents)}
    numbers = {one.pk: f"incident-{number}" for number, one in enumerate(incidents)}
    approvals = [*Approval.objects.filter(session=session).order_by("pk")]
    names |= {one.public_id: f"approval-{number}" for number, one in enumerate(approvals)}

    def plain(value: Any) -> Any:
        value = asdict(value) if isinstance(value, StoredVerdict) else value
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items() if key not in _OF_TIME}
        if isinstance(value, list | tuple):
            return [plain(inner) for inner in value]
        if isinstance(value, str):
            return _SECONDS.sub("some seconds", names.get(value, value))
        return value

    def fields(row: Model) -> dict[str, Any]:
        values = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}
        kept: dict[str, Any] = {
            key: plain(value) for key, value in values.items() if key not in _OF_TIME | _OF_PLACE
        }
        return kept | ({"incident": numbers.get(values["incident_id"])} if "incident_id" in values else {})

    activity = IncidentActivity.objects.filter(incident__in=incidents).order_by("pk")
    by_incident = sorted(activity, key=lambda row: row.incident_id)
    return {
        "session": [fields(session) | {"has_ended": session.ended_at is not None}],
        "events": [fields(row) for row in Event.objects.filter(session_id=session.pk).order_by("seq")],
        "incidents": [fields(row) | {"has_ended": row.ended_at is not None} for row in incidents],
        "activity": [fields(row) for row in by_incident],
        "notices": [fields(row) for row in LimitNotice.objects.filter(session=session).order_by("pk")],
        "approvals": [fields(row) for row in approvals],
        "opened": [
            *AlertEvent.objects.filter(incident__in=incidents, type="opened")
            .order_by("pk")
            .values_list("actor")
        ],
        "tracker": [tracker(session)],
    }


def differences(got: Any, expected: Any, path: str = "") -> list[str]:
    """Return where two results of `rows` differ, as readable lines."""
    if isinstance(got, dict) and isinstance(expected, dict) and got.keys() == expected.keys():
        return [line for key in got for line in differences(got[key], expected[key], f"{path}.{key}")]
    if isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        pairs = enumerate(zip(got, expected, strict=True))
        return [
            line for number, (one, other) in pairs for line in differences(one, other, f"{path}[{number}]")
        ]
    return [] if got == expected else [f"{path}: {got!r}, expected {expected!r}"]


def tracker(session: Session) -> Any:
    """Return the stored state of the engine without times."""
    stored = TrackerState.objects.filter(session=session).first()
    return _plain_state(bytes(stored.snapshot)) if stored else None


def rebuilt_tracker(session: Session) -> Any:
    """Return the state of the engine as it is rebuilt from the stored events of a session."""
    TrackerState.objects.filter(session=session).update(snapshot=b"of an older version")
    with locked_session(session.key) as locked:
        return _plain_state(snapshot.dump(locked.tracker))


def _plain_state(packed: bytes) -> Any:
    state = orjson.loads(packed)
    for run in state["r"].values():
        for *_, reaction in run[-1]:
            if reaction:
                reaction[_WINDOW_OF_REACTION] = None
    return _without_times(state)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_times(inner) for inner in value]
    return 0 if isinstance(value, float) and value > _LATEST_TIMES else value
