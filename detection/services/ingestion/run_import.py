"""Imports past runs: their calls keep their recorded times, send no alerts, and are evaluated immediately.

An imported session is written by nothing else, so its last sequence number says how much of the record is stored.
Importing a record again, or one that has grown, therefore continues where the last import ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.db.models import Count, Sum
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from detection.integrations.events import ReportedEvent
from detection.integrations.labels import Labels
from detection.integrations.session_names import bounded
from detection.models import EventType, ImportedUsage, Incident, Project, Session
from detection.models.imports import LONGEST_SHOWN
from detection.models.incidents import IS_LOOP
from detection.models.sessions import IMPORTED
from detection.selectors.prices import PriceList
from detection.services.events.event_records import (
    EARLIEST_YEAR,
    MAX_COST_USD,
    MAX_INTEGER,
    NAME_CHARACTERS,
    EventRecord,
)
from detection.services.ingestion import ingest
from detection.services.keys import Principal
from detection.services.sessions.call_identity import CallIdentity
from detection.services.sessions.folding import EventEvaluationError, Folding, Quarantine
from detection.services.sessions.locked_session import locked_session_of_agent
from detection.sql.retries import retry_conflicts
from detection.strict_json import Cleaner, JsonProblem, compact

BATCH_EVENTS: Final = 500
"""Events of one transaction: all of a run that is in memory."""
MAX_WAITING_CHARACTERS: Final = 16 * 1024**2
"""Of all runs of one file, whose lines may alternate."""
MAX_ARGUMENTS_CHARACTERS: Final = 256 * 1024
WORST: Final = 5
_NOT_READ: Final = frozenset(("session", "id", "run"))
"""Names of a recorded event that its import does not take over."""


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """The import of one session.

    Attributes
    ----------
    session_id
        Its row; None if the session was recorded live and is left alone.
    added, known, omitted
        Events that are new, those of earlier imports, and those that the API would reject.
    """

    session_id: int | None
    added: int = 0
    known: int = 0
    omitted: int = 0


class _Tokens(NamedTuple):
    """The tokens of an event, with those of the cache as a part of the input."""

    input: int
    cached: int
    cache_write: int
    output: int


@dataclass(frozen=True, slots=True)
class WorstLoop:
    """One of the most expensive loops."""

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
    return Principal.of_project(project, "import", ("ingest",))


class RunImport:
    """The import of one session, event by event; events that are already stored are skipped.

    Parameters
    ----------
    kind
        Format of the transcripts, such as ``claude-code``.
    name
        The session's name. Nothing is changed of a session that was recorded live.
    labels
        Redacted tags and metadata, which the session gets with its new events.
    given, prices
        See `priced`. The tokens of events that `prices` apply to are kept, so that later prices apply as well.

    Attributes
    ----------
    added
        New events that are stored.
    waiting_characters
        Size of the texts that are not stored yet.
    """

    def __init__(
        self,
        principal: Principal,
        kind: str,
        name: str,
        labels: Labels,
        given: Sequence[float] | None = None,
        prices: PriceList | None = None,
    ) -> None:
        self._principal, self._kind, self.name = principal, kind, principal.redactor.name(name)
        self._labels, self._given, self._prices = labels, given, prices
        self._tokens: dict[int, _Tokens] = {}
        """By the identity of the record in the batch."""
        self._sessions = Session.objects.filter(project_id=principal.project_id, external_id=self.name)
        session = self._sessions.only("last_seq", "integration").first()
        self._is_live = session is not None and not session.is_imported
        self._known = session.last_seq if session is not None else 0
        self._to_pass = self._stored = self._known
        self.added = self._omitted = 0
        self._batch: list[EventRecord] = []
        self.waiting_characters = 0

    def add(self, event: ReportedEvent) -> None:
        """Add an event in the form of the API, in the same order at every import. Stores a batch when it is full."""
        if self._is_live:
            return
        record = _valid_record(priced(event, self._given, self._prices), self.name)
        if record is None:
            self._omitted += 1
        elif self._to_pass:
            self._to_pass -= 1
        else:
            ingest.prepare([record], self._principal)
            self._batch.append(record)
            if not self._given and record.model and (tokens := _tokens_of(event)):
                self._tokens[id(record)] = tokens
            self.waiting_characters += len(record.arguments or "") + len(record.content or "")
            if len(self._batch) >= BATCH_EVENTS:
                self.store()

    def store(self) -> None:
        """Store the collected events in one transaction."""
        if self._batch:
            self.added += _import_batch(
                self._principal, self._kind, self._labels, self._batch, self._tokens, self._stored
            )
            # Also those that another import has stored: the place in the record, not how many were new.
            self._stored += len(self._batch)
            self._batch, self._tokens, self.waiting_characters = [], {}, 0

    def end(self) -> ImportedRun:
        """Store the rest, and end the session if it has grown. It may grow by a later import."""
        self.store()
        if self._is_live:
            return ImportedRun(None)
        row = self._sessions.only("pk").first()
        if self.added and row is not None:
            _end(self._principal, self.name)
        return ImportedRun(row.pk if row else None, self.added, self._known, self._omitted)


class FileImport:
    """The import of the sessions of one file, whose events may alternate.

    Parameters
    ----------
    kind
        Format of the transcripts.
    labels, given, prices
        See `RunImport`.
    """

    def __init__(
        self,
        principal: Principal,
        kind: str,
        labels: Labels,
        given: Sequence[float] | None = None,
        prices: PriceList | None = None,
    ) -> None:
        self._principal, self._kind, self._labels = principal, kind, labels
        self._given, self._prices = given, prices
        self._runs: dict[str, RunImport] = {}
        self._waiting_characters = 0

    def add(self, name: str, event: ReportedEvent) -> None:
        """Add the next event of the file; it belongs to the session of this name."""
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = RunImport(
                self._principal, self._kind, name, self._labels, self._given, self._prices
            )
        before = run.waiting_characters
        run.add(event)
        self._waiting_characters += run.waiting_characters - before
        if self._waiting_characters > MAX_WAITING_CHARACTERS:
            for one in self._runs.values():
                one.store()
            self._waiting_characters = 0

    @property
    def added(self) -> int:
        """How many new events are stored so far."""
        return sum(run.added for run in self._runs.values())

    def end(self) -> list[ImportedRun]:
        """Store the rest and end the sessions; also after an error, because a session that stays open looks alive."""
        return [run.end() for run in self._runs.values()]


def _import_batch(
    principal: Principal,
    kind: str,
    labels: Labels,
    batch: list[EventRecord],
    tokens: Mapping[int, _Tokens],
    stored: int,
) -> int:
    """Store the events that follow the first `stored` of a session. Returns how many of them were new."""
    quarantine = Quarantine(id)
    while True:
        try:
            return _fold(principal, kind, labels, batch, tokens, stored, quarantine)
        except EventEvaluationError as error:
            quarantine.add(error)


@retry_conflicts
def _fold(
    principal: Principal,
    kind: str,
    labels: Labels,
    batch: Sequence[EventRecord],
    tokens: Mapping[int, _Tokens],
    stored: int,
    quarantine: Quarantine,
) -> int:
    ingest.forget_numbers(batch)
    with locked_session_of_agent(principal, batch[0].session) as locked:
        session, folding = locked.session, Folding(locked, quarantine)
        # Another import of the same record may have been here since the last batch.
        batch = batch[max(0, session.last_seq - stored) :]
        if not batch:
            return 0
        if not session.last_seq:
            session.started_at = session.last_event_at = batch[0].occurred_at or timezone.now()
        session.note_labels(labels)
        identity = CallIdentity(
            session.project_id, ((session.pk, event) for event in batch if session.last_seq)
        ).read()
        for event in batch:
            # Without recorded times, each event is one second after the one before it. Time never runs backwards.
            at = event.occurred_at or session.last_event_at + timedelta(seconds=1)
            session.last_event_at = max(session.last_event_at, at)
            ingest.number(event, session, session.last_event_at, identity)
            session.note_sender(
                f"{IMPORTED}{kind}", event.agent, event.backend, event.model, event.parent_session
            )
            folding.fold(event)
        locked.events.store(batch)
        _keep_tokens(session, {event.seq: tokens[id(event)] for event in batch if id(event) in tokens})
        session.evaluated_seq = session.last_seq
    return len(batch)


def _keep_tokens(session: Session, tokens: Mapping[int, _Tokens]) -> None:
    """Store the tokens of events by their numbers, so that a later price applies to them."""
    if tokens:
        amounts = zip(*tokens.values(), strict=True)
        names = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens")
        arrays = {name: [*values] for name, values in zip(names, amounts, strict=True)}
        ImportedUsage.objects.create(session=session, first_seq=min(tokens), seqs=[*tokens], **arrays)


@retry_conflicts
def _end(principal: Principal, name: str) -> None:
    """End an imported session; it may grow by a later import."""
    with locked_session_of_agent(principal, name) as locked:
        session = locked.session
        session.outcome, session.ended_at = "completed", session.last_event_at
        locked.incidents.end_all(session.last_event_at)


def priced(
    event: ReportedEvent, given: Sequence[float] | None, prices: PriceList | None = None
) -> ReportedEvent:
    """Return an event with its cost, if its record has only tokens.

    Parameters
    ----------
    given
        USD per million tokens of input and output, cached ones included, for every model.
    prices
        Those of the project, which apply when none are given.
    """
    usage = event.get("usage")
    if not usage or usage.get("cost_usd") is not None:
        return event
    tokens = [usage[name] for name in ("input_tokens", "output_tokens")]
    if given:
        cost = (tokens[0] * given[0] + tokens[1] * given[1]) / 1_000_000
    else:
        model = event.get("model")
        price = (
            prices.find(event.get("backend") or "", [model]) if prices and isinstance(model, str) else None
        )
        if price is None:
            return event
        cached, written = usage.get("cached_tokens", 0), usage.get("cache_write_tokens", 0)
        cost = price.cost(tokens[0], cached, written, tokens[1])
    return event | {"usage": usage | {"cost_usd": cost}}


def _tokens_of(event: ReportedEvent) -> _Tokens | None:
    """Return the tokens of an event whose record has no cost."""
    usage = event.get("usage")
    if not usage or usage.get("cost_usd") is not None:
        return None
    amounts = (
        usage["input_tokens"], usage.get("cached_tokens", 0), usage.get("cache_write_tokens", 0),
        usage["output_tokens"],
    )  # fmt: skip
    return _Tokens(*(min(amount, MAX_INTEGER) for amount in amounts))


def _valid_record(event: ReportedEvent, name: str) -> EventRecord | None:
    """Return the record of an event; None for one that the API would reject."""
    try:
        record = _record(event, name)
    except (JsonProblem, ValueError, TypeError, OverflowError):
        return None
    if len(record.arguments or "") > MAX_ARGUMENTS_CHARACTERS:
        return None
    return record if record.type != EventType.CALL or record.tool else None


def _record(event: ReportedEvent, name: str) -> EventRecord:
    cleaner, usage = Cleaner(), event.get("usage") or {}
    arguments, content = event.get("arguments"), event.get("content")
    if isinstance(arguments, str):
        arguments = (
            cleaner.json_text(arguments) if arguments.lstrip()[:1] in ("{", "[") else cleaner.text(arguments)
        )
    elif arguments is not None:
        arguments = compact(cleaner.value(arguments))
    if isinstance(content, str):
        content = cleaner.text(content)
    elif content is not None:
        content = compact(cleaner.value(content))
    names: dict[str, Any] = {
        key: bounded(value, length)
        for key, length in NAME_CHARACTERS.items()
        if key not in _NOT_READ and isinstance(value := event.get(key), str)
    }
    is_error = event.get("is_error")
    return EventRecord(
        type=event["type"],
        session=name,
        arguments=arguments,
        content=content,
        role=event.get("role") or "",
        is_error=is_error if isinstance(is_error, bool) else None,
        occurred_at=_time(event.get("occurred_at")),
        tokens=min(usage.get("input_tokens", 0) + usage.get("output_tokens", 0), MAX_INTEGER),
        cost_usd=min(float(usage.get("cost_usd") or 0), MAX_COST_USD),
        altered=",".join(cleaner.marks)[:120],
        **names,
    )


def _time(value: Any) -> datetime | None:
    at = parse_datetime(value) if isinstance(value, str) else None
    if at is None or at.year < EARLIEST_YEAR:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return min(at.astimezone(UTC), timezone.now())


def summarise(project: Project, sessions: Iterable[int]) -> ImportSummary:
    """Summarise the loops of imported sessions, by row id, without those that are labelled "not a loop"."""
    ids = [*sessions]
    rows = Session.objects.filter(project=project, pk__in=ids)
    loops = Incident.objects.filter(IS_LOOP, project=project, session_id__in=ids)
    sums = loops.aggregate(loops=Count("pk"), calls=Sum("counted_calls"), cost=Sum("cost_usd"))
    base = f"{settings.PUBLIC_URL}/p/{project.slug}"
    worst = loops.order_by("-cost_usd", "-counted_calls", "pk")[:WORST]
    return ImportSummary(
        sessions=len(ids),
        calls=rows.aggregate(calls=Sum("call_count"))["calls"] or 0,
        looping_sessions=loops.values("session_id").distinct().count(),
        loops=sums["loops"],
        loop_calls=sums["calls"] or 0,
        loop_cost_usd=float(sums["cost"] or 0),
        worst=tuple(
            WorstLoop(
                row.tool[:LONGEST_SHOWN],
                row.session_name[:LONGEST_SHOWN],
                row.counted_calls or row.calls_in_loop,
                float(row.cost_usd),
                f"{base}/incidents/{row.public_id}",
            )
            for row in worst
        ),
        url=f"{base}/incidents",
    )
