"""Stores the events of OpenTelemetry: names the sessions that spans do not name, and links the sessions of sub-agents.

What later requests need to know about a trace is kept beside the event ids, in `EventKey`, under separate digests:
the session of a trace, and the session of an agent that was started under a span which has not arrived.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from django.db import connection

from detection.integrations.labels import NO_LABELS, Labels
from detection.integrations.otlp.conversations import event_id
from detection.models import EventType
from detection.models.sessions import OTLP
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.ingest import Accepted, ingest
from detection.services.keys import Principal
from detection.services.sessions.locked_session import locked_sessions_of_batch
from detection.sql.retries import retry_conflicts

BATCH_EVENTS: Final = 1_000
"""Events of one transaction."""


@dataclass(slots=True)
class TelemetrySpan:
    """The events of one span; see `integrations.otlp.conversations.SpanEvents`."""

    session: str
    trace_id: str
    span_id: str
    started_by: str
    records: list[EventRecord] = field(default_factory=list)


def ingest_telemetry(
    principal: Principal,
    spans: Sequence[TelemetrySpan],
    ordered: Sequence[EventRecord],
    labels: Labels = NO_LABELS,
) -> Accepted:
    """Store the events of one request.

    Parameters
    ----------
    principal
        The key it came with.
    spans
        Those with events.
    ordered
        The records of all spans, in the order in which they are to count. Their sessions are named in place.
    labels
        Tags and metadata for all sessions.

    Returns
    -------
    Accepted
        After commit of all of them, up to 1,000 in one transaction. If one fails, the exporter sends the request again,
        and what is stored counts as duplicate.
    """
    _name_sessions(principal, spans)
    total = Accepted()
    for start in range(0, len(ordered), BATCH_EVENTS):
        part = ordered[start : start + BATCH_EVENTS]
        total.add(ingest(principal, part, integration=OTLP, labels=labels), start)
    _remember(principal, spans)
    return total


def _name_sessions(principal: Principal, spans: Iterable[TelemetrySpan]) -> None:
    """Name the sessions of spans that name none: that of their trace, by its own id if nothing else is known."""
    unnamed = [span for span in spans if not span.session]
    known = _sessions_of(principal.project_id, [*{_of_trace(span.trace_id) for span in unnamed}])
    redactor = principal.redactor
    for span in unnamed:
        span.session = known.get(_of_trace(span.trace_id), span.trace_id)
    for span in spans:
        span.session = redactor.name(span.session)
        for record in span.records:
            record.session = span.session


def _remember(principal: Principal, spans: Sequence[TelemetrySpan]) -> None:
    """Store what later requests need to know, and link the sub-agents of earlier requests."""
    keys: dict[bytes, str] = {}
    for span in spans:
        if span.trace_id and span.session != span.trace_id:
            keys.setdefault(_of_trace(span.trace_id), span.session)
        if span.started_by:
            keys.setdefault(_of_start(span.trace_id, span.started_by), span.session)
    if keys:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO detection_eventkey (project_id, digest, session_id)"
                " SELECT %s, k.digest, s.id FROM unnest(%s::bytea[], %s::text[]) AS k (digest, name)"
                " JOIN detection_session s ON s.project_id = %s AND s.external_id = k.name"
                " ORDER BY k.digest ON CONFLICT DO NOTHING",
                [principal.project_id, [*keys], [*keys.values()], principal.project_id],
            )
    # Each request stores its keys before it looks for those of others, so that of two at one time one finds the other.
    parents = _found_parents(principal.project_id, spans)
    if parents:
        _link(principal, parents)


def _found_parents(project_id: int, spans: Iterable[TelemetrySpan]) -> dict[str, str]:
    """Return the parents of sessions whose agent came with another request than the span that started it."""
    calls: dict[bytes, str] = {}
    starts: dict[bytes, str] = {}
    for span in spans:
        if any(record.type == EventType.CALL for record in span.records):
            calls[_of_start(span.trace_id, span.span_id)] = span.session
        if span.started_by:
            starts[_of_event(event_id(span.trace_id, span.started_by, "call"))] = span.session
    found = _sessions_of(project_id, [*calls, *starts])
    parents = {found[digest]: parent for digest, parent in calls.items() if digest in found}
    parents |= {child: found[digest] for digest, child in starts.items() if digest in found}
    return {child: parent for child, parent in parents.items() if child != parent}


@retry_conflicts
def _link(principal: Principal, parents: Mapping[str, str]) -> None:
    with locked_sessions_of_batch(principal, parents) as by_name:
        for child, session in by_name.items():
            session.parent_external_id = session.parent_external_id or parents[child]


def _sessions_of(project_id: int, digests: Sequence[bytes]) -> dict[bytes, str]:
    """Return the names of the sessions that are kept under digests; one query or none."""
    if not digests:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT k.digest, s.external_id FROM detection_eventkey k"
            " JOIN detection_session s ON s.project_id = k.project_id AND s.id = k.session_id"
            " WHERE k.project_id = %s AND k.digest = ANY(%s::bytea[])",
            [project_id, [*digests]],
        )
        return {bytes(digest): name for digest, name in cursor.fetchall()}


def _of_event(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def _of_trace(trace_id: str) -> bytes:
    return hashlib.blake2b(trace_id.encode(), digest_size=16, person=b"otlp-trace").digest()


def _of_start(trace_id: str, span_id: str) -> bytes:
    name = f"{trace_id}-{span_id}".encode()
    return hashlib.blake2b(name, digest_size=16, person=b"otlp-start").digest()
