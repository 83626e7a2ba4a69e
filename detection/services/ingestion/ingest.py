"""Accepts events: redacts, numbers, stores, responds after commit. Never evaluates and never waits for the broker.

Parsing and limits belong to the API; what a call means belongs to evaluation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection
from django.utils import timezone

from detection import jobs
from detection.models import EventType, Project, Session
from detection.services.ingestion.redaction import Redactor
from detection.services.keys import Principal
from detection.services.sessions.event_records import EventRecord, store
from detection.services.sessions.locked_session import locked_sessions_of_batch
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

STORED_RESULT_CHARACTERS = 16_384


@dataclass(slots=True)
class Accepted:
    """What became of a batch: positions refer to the events as given."""

    accepted: int = 0
    duplicate: int = 0
    altered: list[dict[str, Any]] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)


def ingest(principal: Principal, events: Sequence[EventRecord]) -> Accepted:
    """Store a batch.

    Parameters
    ----------
    principal
        The key it came with; decides the project.
    events
        At most 1,000, in the order in which they are to count. They are redacted and numbered in place.

    Returns
    -------
    Accepted
        After commit. An event whose id, or whose (session, type, call id), is known counts as duplicate.
    """
    done = Accepted()
    if not events:
        return done
    prepare(events, principal.digest_secret)
    with locked_sessions_of_batch(principal, {event.session for event in events}) as by_name:
        project = by_name[events[0].session].project
        fresh = _fresh(project, by_name, events, done)
        store(fresh)
        if project.first_event_at is None:
            note_first_event(project)
        jobs.evaluate_after_commit([session.pk for session in by_name.values()])
        publish_after_commit(project.pk, Hint("attempt"))
    done.accepted = len(fresh)
    done.sessions = [*by_name]
    return done


def prepare(events: Iterable[EventRecord], secret: bytes) -> None:
    """Redact events in place, and cut their texts to what is stored; to be done once, before any lock is taken."""
    redactor = Redactor(secret)
    for event in events:
        if event.arguments is not None:
            event.arguments = redactor.arguments(event.arguments)
        if event.content is not None:
            content = redactor.content(event.content)
            event.content_length = len(content)
            if len(content) > STORED_RESULT_CHARACTERS:
                event.tail_digest = hashlib.blake2b(content.encode(), key=secret, digest_size=16).hexdigest()
            event.content = content[:STORED_RESULT_CHARACTERS]


def number(event: EventRecord, session: Session, now: datetime) -> None:
    """Give an event its place in a locked session."""
    session.last_seq += 1
    event.session_id, event.seq, event.received_at = session.pk, session.last_seq, now
    event.call_id = event.call_id or f"seq-{event.seq}"


def _note_about(event: EventRecord, session: Session) -> None:
    """Take over what an event says about its session."""
    session.agent = event.agent or session.agent
    session.backend = event.backend or session.backend
    session.model = event.model or session.model
    session.parent_external_id = event.parent_session or session.parent_external_id


def _fresh(
    project: Project, by_name: dict[str, Session], events: Sequence[EventRecord], done: Accepted
) -> list[EventRecord]:
    """Number the events that are new and return them; count the others."""
    fresh_ids = _claim_ids(project, by_name, events)
    known = known_calls(
        (by_name[event.session].pk, event.type, event.call_id)
        for event in events
        if event.call_id and event.type in (EventType.CALL, EventType.RESULT)
    )
    now = timezone.now()
    fresh = []
    for index, event in enumerate(events):
        session = by_name[event.session]
        place = (session.pk, event.type, event.call_id)
        is_call_or_result = event.type in (EventType.CALL, EventType.RESULT)
        if (event.id and not fresh_ids.pop(event.id, False)) or (
            is_call_or_result and event.call_id and place in known
        ):
            done.duplicate += 1
            continue
        if is_call_or_result and event.call_id:
            known.add(place)
        number(event, session, now)
        _note_about(event, session)
        fresh.append(event)
        if event.altered:
            done.altered.append({"index": index, "marks": event.altered.split(",")})
    return fresh


def _claim_ids(
    project: Project, by_name: dict[str, Session], events: Sequence[EventRecord]
) -> dict[str, bool]:
    """Claim the event ids of the client; return true for each id that is new, once."""
    ids = {event.id: by_name[event.session].pk for event in events if event.id}
    if not ids:
        return {}
    by_digest = {hashlib.blake2b(name.encode(), digest_size=16).digest(): name for name in ids}
    digests = sorted(by_digest)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO detection_eventkey (project_id, digest, session_id)"
            " SELECT %s, digest, session_id FROM unnest(%s::bytea[], %s::bigint[]) AS new (digest, session_id)"
            " ON CONFLICT DO NOTHING RETURNING digest",
            [project.pk, digests, [ids[by_digest[digest]] for digest in digests]],
        )
        return {by_digest[bytes(row[0])]: True for row in cursor.fetchall()}


_FEW_PLACES = 200
"""Up to here looking up every session with every call id is cheaper than a join."""


def known_calls(places: Iterable[tuple[int, str, str]]) -> set[tuple[int, str, str]]:
    """Return which of the (session id, type, call id) are stored already."""
    wanted = {*places}
    if not wanted:
        return set()
    sessions, call_ids = sorted({place[0] for place in wanted}), sorted({place[2] for place in wanted})
    with connection.cursor() as cursor:
        if len(sessions) * len(call_ids) <= _FEW_PLACES:
            # Plain values let the planner leave every other partition out, which a join does not: a quarter of the time.
            cursor.execute(
                "SELECT session_id, type, call_id FROM detection_event WHERE session_id = ANY(%s::bigint[])"
                " AND type IN ('call', 'result') AND call_id = ANY(%s::text[])",
                [sessions, call_ids],
            )
        else:
            cursor.execute(
                "SELECT e.session_id, e.type, e.call_id FROM unnest(%s::bigint[], %s::text[], %s::text[])"
                " AS w (session_id, type, call_id)"
                " JOIN detection_event e ON e.session_id = w.session_id AND e.type = w.type AND e.call_id = w.call_id",
                [list(column) for column in zip(*wanted, strict=True)],
            )
        return wanted.intersection(tuple(row) for row in cursor.fetchall())


def note_first_event(project: Project) -> None:
    """Note when the project received its first event."""
    Project.objects.filter(pk=project.pk, first_event_at=None).update(first_event_at=timezone.now())
