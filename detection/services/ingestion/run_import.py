"""Imports past runs: their calls count at the times of the record, alert nobody, and are evaluated at once.

An imported session is written by nothing else, so its last sequence number says how much of the record is stored. Importing a
record again, or one that has grown, therefore continues where the last import ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from django.conf import settings
from django.db.models import Sum
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from detection.models import EventType, Incident, Project, Session
from detection.models.sessions import IMPORTED
from detection.services.ingestion import ingest
from detection.services.ingestion.call_identity import CallIdentity
from detection.services.keys import Principal
from detection.services.sessions.event_records import EventRecord
from detection.services.sessions.folding import EventEvaluationError, Folding, Quarantine
from detection.services.sessions.locked_session import locked_session_of_agent
from detection.sql.retries import retry_conflicts
from detection.strict_json import Cleaner, JsonProblem, compact

BATCH_EVENTS: Final = 500
"""Events of one transaction: all of a run that is in memory."""
WORST: Final = 5
_LONGEST_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """The import of one session.

    Attributes
    ----------
    session_id
        Its row; None if the session was recorded live and is left alone.
    added, known
        Events that are new, and those of earlier imports.
    """

    session_id: int | None
    added: int = 0
    known: int = 0


@dataclass(frozen=True, slots=True)
class WorstLoop:
    """A loop that cost the most."""

    tool: str
    session: str
    calls: int
    cost_usd: float
    url: str


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What imported sessions show about loops."""

    sessions: int
    calls: int
    looping_sessions: int
    loops: int
    loop_calls: int
    loop_cost_usd: float
    worst: tuple[WorstLoop, ...]
    url: str


def importer(project: Project) -> Principal:
    """Return the principal of imports into a project."""
    return Principal(
        0,
        "import",
        project.pk,
        project.slug,
        frozenset(("ingest",)),
        False,
        None,
        bytes(project.digest_secret),
    )


def import_run(principal: Principal, kind: str, name: str, events: Iterable[dict[str, Any]]) -> ImportedRun:
    """Import the events of one session.

    Parameters
    ----------
    kind
        Form of the record, such as ``claude-code``.
    name
        The session's name.
    events
        Events in the form of the API, in the same order at every import. One that the API would reject is omitted.

    Returns
    -------
    ImportedRun
        After commit. Nothing is changed of a session that was recorded live.
    """
    found = Session.objects.filter(project_id=principal.project_id, external_id=name)
    session = found.only("last_seq", "integration").first()
    if session is not None and not session.is_imported:
        return ImportedRun(None)
    known = session.last_seq if session is not None else 0
    records = islice(_records(events, name), known, None)
    added = 0
    while batch := list(islice(records, BATCH_EVENTS)):
        ingest.prepare(batch, principal.digest_secret)
        _import_batch(principal, kind, batch)
        added += len(batch)
    row = found.only("pk").first()
    if added and row is not None:
        _end(principal, name)
    return ImportedRun(row.pk if row else None, added, known)


def _import_batch(principal: Principal, kind: str, batch: list[EventRecord]) -> None:
    quarantine = Quarantine(batch)
    while True:
        try:
            _fold(principal, kind, batch, quarantine)
        except EventEvaluationError as error:
            quarantine.add(error)
        else:
            return


@retry_conflicts
def _fold(principal: Principal, kind: str, batch: Sequence[EventRecord], quarantine: Quarantine) -> None:
    ingest.forget_numbers(batch)
    with locked_session_of_agent(principal, batch[0].session) as locked:
        session, folding = locked.session, Folding(locked, quarantine)
        if not session.last_seq:
            session.started_at = session.last_event_at = batch[0].occurred_at or timezone.now()
        identity = CallIdentity((session.pk, event) for event in batch if session.last_seq).read()
        for event in batch:
            # Without recorded times, each event is one second after the one before it. Time never runs backwards.
            at = event.occurred_at or session.last_event_at + timedelta(seconds=1)
            session.last_event_at = max(session.last_event_at, at)
            ingest.number(event, session, session.last_event_at, identity)
            ingest.note_about(event, session, f"{IMPORTED}{kind}")
            folding.fold(event)
        stored = batch
        if not session.project.stores_payloads:
            stored = [replace(event, arguments=None, content=None) for event in batch]
        locked.events.store(list(stored))
        session.evaluated_seq = session.last_seq


@retry_conflicts
def _end(principal: Principal, name: str) -> None:
    """End an imported session; it may grow by a later import."""
    with locked_session_of_agent(principal, name) as locked:
        session = locked.session
        session.outcome, session.ended_at = "completed", session.last_event_at
        locked.incidents.end_all(session.last_event_at)


def _records(events: Iterable[dict[str, Any]], name: str) -> Iterator[EventRecord]:
    for event in events:
        try:
            record = _record(event, name)
        except (JsonProblem, ValueError, TypeError):
            continue
        if record.type != EventType.CALL or record.tool:
            yield record


def _record(event: dict[str, Any], name: str) -> EventRecord:
    cleaner, usage = Cleaner(), event.get("usage") or {}
    arguments, content = event.get("arguments"), event.get("content")
    if isinstance(arguments, str):
        arguments = (
            cleaner.json_text(arguments) if arguments.lstrip()[:1] in ("{", "[") else cleaner.text(arguments)
        )
    elif arguments is not None:
        arguments = compact(cleaner.value(arguments))
    names = {
        key: event[key]
        for key in ("call_id", "tool", "round", "backend", "model", "agent", "parent_session")
        if isinstance(event.get(key), str)
    }
    return EventRecord(
        type=event["type"],
        session=name,
        arguments=arguments,
        content=cleaner.text(content) if isinstance(content, str) else None,
        is_error=event.get("is_error"),
        occurred_at=_time(event.get("occurred_at")),
        tokens=min(usage.get("input_tokens", 0) + usage.get("output_tokens", 0), 2**31 - 1),
        cost_usd=float(usage.get("cost_usd") or 0),
        altered=",".join(cleaner.marks)[:120],
        **names,
    )


def _time(value: Any) -> datetime | None:
    at = parse_datetime(value) if isinstance(value, str) else None
    if at is None:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(at.astimezone(UTC), timezone.now())


def summarise(project: Project, sessions: Iterable[int]) -> ImportSummary:
    """Return what imported sessions, by row id, show about loops: the calls and the money in them, and the worst."""
    ids = [*sessions]
    rows = Session.objects.filter(project=project, pk__in=ids)
    loops = Incident.objects.filter(project=project, session_id__in=ids)
    sums = loops.aggregate(calls=Sum("unshared_calls"), cost=Sum("unshared_cost_usd"))
    base = f"{settings.PUBLIC_URL}/p/{project.slug}"
    worst = loops.order_by("-unshared_cost_usd", "-unshared_calls", "pk")[:WORST]
    return ImportSummary(
        sessions=len(ids),
        calls=rows.aggregate(calls=Sum("call_count"))["calls"] or 0,
        looping_sessions=loops.values("session_id").distinct().count(),
        loops=loops.count(),
        loop_calls=sums["calls"] or 0,
        loop_cost_usd=float(sums["cost"] or 0),
        worst=tuple(
            WorstLoop(
                row.tool[:_LONGEST_SHOWN],
                row.session_name[:_LONGEST_SHOWN],
                row.calls_in_loop,
                float(row.cost_usd),
                f"{base}/incidents/{row.public_id}",
            )
            for row in worst
        ),
        url=f"{base}/incidents",
    )
