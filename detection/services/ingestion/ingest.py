"""Accepts events: redacts, numbers, stores, responds after commit. Never evaluates and never waits for the broker.

Parsing and limits belong to the API; what a call means belongs to evaluation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, compress
from operator import attrgetter, not_
from typing import Any

import orjson
import structlog
from django.db import DataError, connection

from detection import clock, jobs
from detection.engine.dispatching import named
from detection.engine.open_calls import ASSIGNED
from detection.integrations.labels import NO_LABELS, Labels
from detection.integrations.people import is_reported_by_person
from detection.models import EventType, MessageRole, Project, Session
from detection.models.sessions import OTLP
from detection.services.events.event_records import EventRecord, store
from detection.services.keys import Principal
from detection.services.sessions.call_identity import CallIdentity
from detection.services.sessions.locked_session import locked_sessions_of_batch
from detection.sql.retries import retry_conflicts
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

log = structlog.get_logger(__name__)

STORED_RESULT_CHARACTERS = 16_384
MAX_TOOL_CHARACTERS = 128
MAX_CWD_CHARACTERS = 1024
"""Marks of what was redacted may be longer than what they replace."""
NAMES = ("session", "parent_session", "call_id", "round", "run", "tool", "agent", "backend", "model")
"""Fields with names from the client, which are stored as they are unless one contains a secret."""
_names_of = attrgetter(*NAMES)
ASSIGNED_NAMES = ("call_id", "round", "run", "tool", "agent", "backend", "model")
"""Fields that an event gets from its session, its request or its call if the client omits them."""
_assigned_of = attrgetter(*ASSIGNED_NAMES)
COST_DECIMALS = 6
"""Decimals as stored, so that a cost is the same before and after storing."""


@dataclass(slots=True)
class Accepted:
    """The outcome of a batch; positions refer to the events as given."""

    accepted: int = 0
    duplicate: int = 0
    altered: list[dict[str, Any]] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)

    def add(self, other: Accepted, start: int) -> None:
        """Add the outcome of a part of the batch that begins at this position."""
        self.accepted += other.accepted
        self.duplicate += other.duplicate
        self.altered += [{**item, "index": item["index"] + start} for item in other.altered]
        self.rejected += [index + start for index in other.rejected]
        self.sessions += [name for name in other.sessions if name not in self.sessions]


def ingest(
    principal: Principal,
    events: Sequence[EventRecord],
    *,
    integration: str = "events",
    labels: Labels = NO_LABELS,
) -> Accepted:
    """Store a batch.

    Parameters
    ----------
    principal
        The key it came with; decides the project.
    events
        At most 1,000, in the order in which they are to count. They are redacted and numbered in place.
    integration
        What sends them; see `Session.integration`.
    labels
        Tags and metadata for all their sessions, besides those of the events.

    Returns
    -------
    Accepted
        After commit. An event whose id is known counts as duplicate, and so does one that repeats an open call or the
        result of a call; see `call_identity`. An event that the database cannot store is rejected by itself.
    """
    if not events:
        return Accepted()
    redactor = principal.redactor
    for event in events:
        if event.labels is not NO_LABELS or labels is not NO_LABELS:
            event.labels = redactor.labels(labels.joined(event.labels))
    prepare(events, principal)
    return _store_valid(principal, events, integration)


def _store_valid(principal: Principal, events: Sequence[EventRecord], integration: str) -> Accepted:
    """Store a batch. Of one that the database rejects, only the events at fault are omitted, which halving finds."""
    try:
        return _store(principal, events, integration)
    except (DataError, UnicodeError):
        middle, done = len(events) // 2, Accepted()
        if middle:
            for start, part in ((0, events[:middle]), (middle, events[middle:])):
                done.add(_store_valid(principal, part, integration), start)
        else:
            log.exception("event_not_storable", session=events[0].session, type=events[0].type)
            done.rejected.append(0)
        return done


@retry_conflicts
def _store(principal: Principal, events: Sequence[EventRecord], integration: str) -> Accepted:
    done = Accepted()
    forget_numbers(events)
    with locked_sessions_of_batch(principal, {event.session for event in events}) as by_name:
        project = by_name[events[0].session].project
        fresh = _fresh(principal, by_name, events, done, integration)
        store(project.pk, fresh)
        if project.first_event_at is None:
            note_first_event(project)
        jobs.evaluate_after_commit(project.pk, [session.pk for session in by_name.values()])
        publish_after_commit(project.pk, Hint("attempt"))
    done.accepted = len(fresh)
    done.sessions = [*by_name]
    return done


def prepare(events: Sequence[EventRecord], principal: Principal) -> None:
    """Redact events in place, and cut their texts to what is stored; to be done once, before any lock is taken."""
    redactor, secret = principal.redactor, principal.digest_secret
    # All at once: the search itself takes longer than what it reads of one event.
    may_change = redactor.may_change({*chain.from_iterable(map(_names_of, events))})
    for event in events:
        if may_change and redactor.may_change(_names_of(event)):
            for field_name, name in zip(NAMES, _names_of(event), strict=True):
                setattr(event, field_name, redactor.name(name))
        event.assigned = (*compress(ASSIGNED_NAMES, map(not_, _assigned_of(event))),)
        if event.arguments is not None:
            event.arguments = redactor.content(event.arguments)
        if event.type in (EventType.CALL, EventType.RESULT) and event.tool:
            event.tool = named(event.tool, event.arguments)[:MAX_TOOL_CHARACTERS]
        if event.type == EventType.CALL or event.arguments is not None:
            event.arguments_digest = digest_of_arguments(event.arguments, secret)
        if event.cwd:
            event.cwd = redactor.content(event.cwd)[:MAX_CWD_CHARACTERS]
        event.cost_usd = round(event.cost_usd, COST_DECIMALS)
        is_prompt = event.type == EventType.MESSAGE and event.is_of_user
        if is_prompt and not is_reported_by_person(event.content):
            event.role = MessageRole.PROGRAM
        if event.content is not None:
            content = redactor.content(event.content)
            event.content_length = max(event.content_length, len(content))
            if len(content) > STORED_RESULT_CHARACTERS:
                # The digest that came with a content which was cut before stands for the whole.
                event.tail_digest = event.tail_digest or content
            event.content = content[:STORED_RESULT_CHARACTERS]
        if event.tail_digest:
            event.tail_digest = hashlib.blake2b(
                event.tail_digest.encode(), key=secret, digest_size=16
            ).hexdigest()


def digest_of_arguments(arguments: str | None, secret: bytes) -> str:
    """Return a digest that does not depend on the order of keys."""
    text = (arguments or "{}").encode("utf-8", "surrogatepass")
    with suppress(orjson.JSONDecodeError):
        text = orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(text, key=secret, digest_size=8).hexdigest()


def number(
    event: EventRecord, session: Session, now: datetime, identity: CallIdentity, *, request_round: str = ""
) -> None:
    """Give a new event its sequence number in a locked session, and the names that it lacks.

    Parameters
    ----------
    request_round
        The round of a call whose client named none. Without it, each call is a request of its own; the engine decides
        whether a request joins the round before it.
    """
    session.last_seq += 1
    event.session_id, event.seq, event.received_at = session.id, session.last_seq, now
    event.agent = event.agent or session.agent
    event.backend = event.backend or session.backend
    event.model = event.model or session.model
    assigned = f"{ASSIGNED}{event.seq}"
    if event.type == EventType.CALL:
        event.call_id = event.call_id or assigned
        event.round = event.round or request_round or assigned
    identity.add(event)
    if event.type == EventType.RESULT:
        event.arguments = None


def forget_numbers(events: Iterable[EventRecord]) -> None:
    """Reset the numbers that a rolled-back transaction gave to events."""
    for event in events:
        if event.seq:
            for name in event.assigned:
                setattr(event, name, "")
            event.seq, event.closes = 0, 0
            event.decision, event.flags, event.verdict, event.reply = "allow", "", None, ""


def _fresh(
    principal: Principal,
    by_name: dict[str, Session],
    events: Sequence[EventRecord],
    done: Accepted,
    integration: str,
) -> list[EventRecord]:
    """Number the events that are new and return them; count the others."""
    project_id = principal.project_id
    fresh_ids = claim_ids(project_id, {event.id: by_name[event.session].pk for event in events if event.id})
    identity = CallIdentity(
        project_id,
        ((by_name[event.session].pk, event) for event in events if by_name[event.session].last_seq),
    ).read()
    received_at = clock.now()
    # The order of the events of several sessions, which may be a family, is that of their times.
    step = timedelta(microseconds=int(len(by_name) > 1))
    fresh = []
    for index, event in enumerate(events):
        session, now = by_name[event.session], received_at + index * step
        is_known_id = event.id and not fresh_ids.pop(event.id, False)
        # Telemetry adds nothing to a session whose calls are reported otherwise: they would count twice.
        is_known_otherwise = integration == OTLP and session.integration not in ("", OTLP)
        if is_known_id or is_known_otherwise or identity.repeated_by(session.pk, event) is not None:
            done.duplicate += 1
            continue
        session.note_sender(
            integration, event.agent, event.backend, event.model, event.parent_session, principal.public_id
        )
        session.note_labels(event.labels)
        number(event, session, now, identity)
        fresh.append(event)
        if event.altered:
            done.altered.append({"index": index, "marks": event.altered.split(",")})
    return fresh


def claim_ids(project_id: int, ids: Mapping[str, int]) -> dict[str, bool]:
    """Claim event ids of the client, given with their sessions; return true for each id that is new, once."""
    if not ids:
        return {}
    by_digest = {hashlib.blake2b(name.encode(), digest_size=16).digest(): name for name in ids}
    digests = sorted(by_digest)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO detection_eventkey (project_id, digest, session_id)"
            " SELECT %s, digest, session_id FROM unnest(%s::bytea[], %s::bigint[]) AS new (digest, session_id)"
            " ON CONFLICT DO NOTHING RETURNING digest",
            [project_id, digests, [ids[by_digest[digest]] for digest in digests]],
        )
        return {by_digest[bytes(row[0])]: True for row in cursor.fetchall()}


def note_first_event(project: Project) -> None:
    """Note when the project received its first event."""
    Project.objects.filter(pk=project.pk, first_event_at=None).update(first_event_at=clock.now())
