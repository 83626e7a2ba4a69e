"""Reads sessions and their calls, for the API and the screens alike. Changes belong to the services."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import reduce
from operator import attrgetter, or_

from django.db.models import Case, F, FloatField, IntegerField, Q, Value, When
from django.db.models.functions import Cast, Extract, Greatest, Left

from detection.models import Event, EventType, MessageRole, Session, SessionState, SessionTool, call_flags
from detection.models.session_state import STOPPED_STATES, state_condition
from detection.models.stored_verdict import StoredVerdict
from detection.selectors import changes
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.lists import SESSIONS
from detection.selectors.packed_events import events_of, is_packed_by_now
from detection.selectors.pages import MAX_ID, BadCursor, Page, cut
from detection.selectors.session_rows import SessionRow

MAX_CHANGES = 500
CALLED_SESSIONS, CALLED_EVENTS = 20, 500
"""The newest sessions, and events of each, in which a call of some names is looked for; every two seconds."""


ALL_SESSIONS = list_query(SESSIONS)
"""Every session, those with the newest events first."""


_FIELDS = tuple(field.name for field in fields(SessionRow))
_LEAST_URGENT_FIRST = (
    SessionState.ENDED,
    SessionState.IDLE,
    SessionState.RUNNING,
    SessionState.STOPPED,
    SessionState.CALLS_BLOCKED,
    SessionState.STOPPING,
    SessionState.SILENT,
    SessionState.STOP_UNENFORCED,
    SessionState.STILL_CALLING,
    SessionState.LOOPING,
    SessionState.HELD,
)
QUIET_AFTER = timedelta(minutes=1)
"""The last minute, as for the calls per minute of the project."""
NEAR_LIMIT_CALLS = 2
"""The fullest meter of a session is shown from this count and half of the limit on."""
_WOULD_HAVE_STOPPED = 0.25
"""Where the column has "would have been stopped" instead of a meter: after all meters that are shown."""


def _urgency(now: datetime) -> Case:
    return Case(
        *(
            When(state_condition(state, now), then=Value(place))
            for place, state in enumerate(_LEAST_URGENT_FIRST)
        ),
        output_field=IntegerField(),
    )


def _limit_share(now: datetime) -> Case:
    """Return the share of the limit that is used, 0 where lists do not show the meter."""
    is_over = state_condition(SessionState.IDLE, now) | state_condition(SessionState.ENDED, now)
    is_near = Q(meter_limit__gt=0, meter_count__gte=NEAR_LIMIT_CALLS) & ~Q(meter_kind="")
    share = Cast("meter_count", FloatField()) / Cast("meter_limit", FloatField())
    return Case(
        When(would_have_stopped_at_call__isnull=False, then=Value(_WOULD_HAVE_STOPPED)),
        When(is_near & ~is_over & Q(meter_count__gte=F("meter_limit") / 2.0), then=share),
        default=Value(0.0),
    )


def _calls_per_minute(now: datetime) -> Case:
    """Return the calls per minute, 0 where lists do not show them."""
    is_quiet = Q(state__in=(*STOPPED_STATES, SessionState.ENDED)) | Q(last_event_at__lt=now - QUIET_AFTER)
    seconds = Extract(F("last_event_at") - F("started_at"), "epoch")
    rate = Cast("call_count", FloatField()) * 60 / Greatest(Cast(seconds, FloatField()), 60.0)
    return Case(When(is_quiet, then=Value(0.0)), default=rate)


_DERIVED = {"urgency": _urgency, "limit_share": _limit_share, "calls_per_minute": _calls_per_minute}
"""Sort keys computed from several columns and the current time."""


def stopped_among(project_id: int, names: Collection[str]) -> set[str]:
    """Return which of these sessions are stopped; one query by index, none without names."""
    if not names:
        return set()
    rows = Session.objects.filter(project_id=project_id, external_id__in=names, state__in=STOPPED_STATES)
    return set(rows.values_list("external_id", flat=True))


def row_of(session: Session) -> SessionRow:
    """Return the frozen row of a session in hand."""
    return SessionRow(*(getattr(session, name) for name in _FIELDS))


def list_sessions(
    project_id: int, query: ListQuery = ALL_SESSIONS, cursor: str = "", limit: int = 50
) -> Page[SessionRow]:
    """List a project's sessions; `query` is of the list `SESSIONS`, and `limit` 1 to 500.

    `BadCursor` for a cursor of another list. One query, by index in the default order.
    """
    order, column = query.order, query.order.key.column
    rows = Session.objects.filter(query.condition(), project_id=project_id)
    if column in _DERIVED:
        # The time of the query: the pages of a file are in one order, however slowly it is read.
        rows = rows.annotate(**{column: _DERIVED[column](query.now)})
    found = [*order.page(rows, cursor).values_list(*_FIELDS, F(column))[: limit + 1]]
    page = cut(found, limit, lambda row: order.cursor_at(row[0], row[-1]))
    return Page(tuple(SessionRow(*row[:-1]) for row in page.items), page.next_cursor)


def get_session(project_id: int, external_id: str) -> Session | None:
    """Return a session of this project by the client's name for it."""
    if "\x00" in external_id:
        return None
    return (
        Session.objects.select_related("project")
        .filter(project_id=project_id, external_id=external_id)
        .first()
    )


def first_call_since(
    project_id: int, since: datetime, *, agent: str, backend: str, model: str, tool: str, session: str
) -> Event | None:
    """Return the first call after a time among the newest events of sessions with these names; empty ones are any.

    Two queries, over the newest `CALLED_EVENTS` events of at most `CALLED_SESSIONS` sessions; one more for each of
    these that is packed.
    """
    names = {"agent": agent, "backend": backend, "model": model, "external_id": session}
    sessions = Session.objects.filter(
        project_id=project_id,
        last_event_at__gte=since,
        **{name: value for name, value in names.items() if value},
    ).order_by("-last_event_at")
    such = Q(type=EventType.CALL, received_at__gt=since, **({"tool": tool} if tool else {}))
    newest: list[Q] = []
    found: list[Event] = []
    for one in sessions.only("project_id", "evaluated_seq", "packed_at")[:CALLED_SESSIONS]:
        first, last = max(one.evaluated_seq - CALLED_EVENTS, 0), one.evaluated_seq
        if one.packed_at is None:
            newest.append(Q(session_id=one.pk, seq__gt=first, seq__lte=last))
        else:
            packed = events_of(one, EventType.CALL, after_seq=first, up_to_seq=last)
            found += packed.filter(such).order_by("received_at")[:1]
    if newest:
        calls = Event.objects.filter(reduce(or_, newest), such, project_id=project_id)
        found += calls.select_related("session").order_by("received_at")[:1]
    return min(found, key=attrgetter("received_at"), default=None)


@dataclass(frozen=True, slots=True)
class CalledTool:
    """Calls of one tool in a session."""

    tool: str
    calls: int
    warned: int
    blocked: int


def called_tools(session: Session, *, limit: int) -> list[CalledTool]:
    """List the tools of a session with the most calls, as far as these are counted. One query, by index."""
    rows = SessionTool.objects.filter(session=session).order_by("-calls", "tool")
    return [CalledTool(*row) for row in rows.values_list("tool", "calls", "warned", "blocked")[:limit]]


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A stored result; `content_length` counts the characters before the text was cut."""

    seq: int
    content: str | None
    content_length: int
    is_error: bool | None
    received_at: datetime
    result_digest: str
    altered: str


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call with its verdict and, once there is one, its result."""

    seq: int
    call_id: str
    tool: str
    arguments: str | None
    cwd: str
    round: str
    run: str
    backend: str
    model: str
    agent: str
    tokens: int
    cost_usd: Decimal
    occurred_at: datetime | None
    received_at: datetime
    altered: str
    call_key: str
    flags: str
    decision: str
    call_number: int
    verdict: StoredVerdict | None
    result: ResultRow | None

    @property
    def has_not_run(self) -> bool:
        """Whether it was blocked, held or stopped."""
        return call_flags.has_not_run(self.flags)

    @property
    def decision_words(self) -> str:
        """Its verdict, and whether it ran all the same; of a reported call, the verdict that it would have had."""
        words = _VERDICT_WORDS.get(self.decision, self.decision)
        if call_flags.ran_refused(self.flags):
            return f"{words}, but ran"
        return f"would be {words}" if call_flags.ran_nevertheless(self.flags) else words


_VERDICT_WORDS = {"allow": "ran", "warn": "warned", "block": "blocked", "hold": "held", "stop": "stopped"}
USAGE_EVENTS = 1_000
_CALL_FIELDS = tuple(field.name for field in fields(CallRow) if field.name != "result")
_RESULT_FIELDS = tuple(field.name for field in fields(ResultRow))


def session_calls(
    session: Session, *, after_seq: int = 0, before_seq: int | None = None, limit: int = 100
) -> Page[CallRow]:
    """List calls of a session in their order, each joined with its result.

    Parameters
    ----------
    after_seq
        Calls after this sequence number.
    before_seq
        Instead of the first ones, the last ones before this sequence number; the cursor then leads backwards.
    limit
        1 to 500.

    Returns
    -------
    Page
        Oldest first; `next_cursor` is for `calls_cursor`. Three queries, by index, whatever the session's length.
        Tokens and cost include usage that was reported by itself, at most `USAGE_EVENTS` events later.
    """
    is_forward = before_seq is None
    calls = events_of(
        session,
        EventType.CALL,
        after_seq=after_seq,
        up_to_seq=None if before_seq is None else before_seq - 1,
        first=limit + 1 if is_forward else 0,
        last=0 if is_forward else limit + 1,
    )
    found = list(calls.order_by("seq" if is_forward else "-seq").values_list(*_CALL_FIELDS)[: limit + 1])
    if not found and is_packed_by_now(session):
        return session_calls(session, after_seq=after_seq, before_seq=before_seq, limit=limit)
    more, found = len(found) > limit, found[:limit]
    last_seq = found[-1][0] if found else 0
    if not is_forward:
        found.reverse()
    results = {
        row[0]: ResultRow(*row[1:])
        for row in events_of(session, EventType.RESULT, closes=[row[0] for row in found])
        .filter(call_id__in=[row[1] for row in found])
        .values_list("closes", *_RESULT_FIELDS)
    }
    usage = _usage_of_calls(session, [row[0] for row in found])
    rows = tuple(_with_usage(CallRow(*[*row, results.get(row[0])]), usage) for row in found)
    return Page(rows, f"c{last_seq}" if more else None)


def _usage_of_calls(session: Session, seqs: list[int]) -> dict[int, tuple[int, Decimal]]:
    """Return tokens and cost that were reported after these calls; one query."""
    if not seqs:
        return {}
    usage: dict[int, tuple[int, Decimal]] = {}
    near = events_of(
        session, EventType.USAGE, after_seq=min(seqs), up_to_seq=max(seqs) + USAGE_EVENTS, closes=seqs
    )
    for seq, tokens, cost in near.values_list("closes", "tokens", "cost_usd"):
        known = usage.get(seq, (0, Decimal()))
        usage[seq] = known[0] + tokens, known[1] + cost
    return usage


def _with_usage(row: CallRow, usage: Mapping[int, tuple[int, Decimal]]) -> CallRow:
    if row.seq not in usage:
        return row
    tokens, cost = usage[row.seq]
    return replace(row, tokens=row.tokens + tokens, cost_usd=row.cost_usd + cost)


@dataclass(frozen=True, slots=True)
class CommandReplyRow:
    """The replies to a message with in-chat commands; `lines` has one reply per command."""

    seq: int
    received_at: datetime
    lines: tuple[str, ...]


def command_replies(
    session: Session, *, after_seq: int = 0, up_to_seq: int | None = None, limit: int = 500
) -> list[CommandReplyRow]:
    """List the newest replies to in-chat commands between two sequence numbers, oldest first. One query, by index."""
    messages = events_of(session, EventType.MESSAGE, after_seq=after_seq, up_to_seq=up_to_seq)
    found = messages.exclude(reply="")
    rows = found.order_by("-seq").values_list("seq", "received_at", "reply")[:limit]
    return [CommandReplyRow(seq, at, tuple(reply.splitlines())) for seq, at, reply in reversed(rows)]


MESSAGE_CHARACTERS = 300
"""Of a message in a trace: its beginning tells what was asked."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """The beginning of a message of the user or of the model; empty if contents are not stored."""

    seq: int
    text: str
    is_of_model: bool = False


def list_messages(session: Session, *, after_seq: int, up_to_seq: int, limit: int = 200) -> list[MessageRow]:
    """List the newest messages of user and model between two sequence numbers, oldest first. One query, by index."""
    found = events_of(session, EventType.MESSAGE, after_seq=after_seq, up_to_seq=up_to_seq)
    found = found.filter(role__in=("", MessageRole.USER, MessageRole.ASSISTANT))
    rows = found.order_by("-seq").values_list("seq", Left("content", MESSAGE_CHARACTERS), "role")[:limit]
    return [MessageRow(seq, text or "", role == MessageRole.ASSISTANT) for seq, text, role in reversed(rows)]


@dataclass(frozen=True, slots=True)
class CompactionRow:
    """A compaction of the model's context."""

    seq: int
    received_at: datetime


def list_compactions(
    session: Session, *, after_seq: int, up_to_seq: int, limit: int = 100
) -> list[CompactionRow]:
    """List the newest compactions between two sequence numbers, oldest first. One query, by index."""
    found = events_of(session, EventType.COMPACTION, after_seq=after_seq, up_to_seq=up_to_seq)
    rows = found.order_by("-seq").values_list("seq", "received_at")[:limit]
    return [CompactionRow(*row) for row in reversed(rows)]


def calls_cursor(cursor: str) -> int:
    """Return the sequence number that a cursor of `session_calls` stands for; `BadCursor` for anything else."""
    digits = cursor[1:]
    if not cursor.startswith("c") or not digits.isascii() or not digits.isdigit() or len(digits) > 10:
        raise BadCursor("`cursor` must be a `next_cursor` of this list.")
    return min(int(digits), 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Changes:
    """Sessions that changed since a cursor.

    Attributes
    ----------
    sessions
        Some may have been returned before; none is missing.
    cursor
        For the next time.
    reset
        Too much changed, or the cursor is unknown: reload the whole list.
    """

    sessions: tuple[SessionRow, ...]
    cursor: str
    reset: bool


def changed_since(
    project_id: int, cursor: str, *, seen: str | None = None, limit: int = MAX_CHANGES
) -> Changes:
    """Return the sessions that changed since the cursor.

    The cursor is the oldest transaction that was running when it was issued. Every later commit has this number or a
    higher one, so none is missed; a session may be returned twice.

    Parameters
    ----------
    seen
        Result of `changes.snapshot` from before any row was read; None calls it.
    """
    # Read before the rows: commits in between then count as changes next time, too.
    horizon = (seen or changes.snapshot()).partition(":")[0]
    if not cursor.isascii() or not cursor.isdigit() or int(cursor) > MAX_ID:
        return Changes((), horizon, True)
    rows = Session.objects.filter(project_id=project_id, changed_xid__gte=int(cursor))
    found = [SessionRow(*row) for row in rows.order_by("changed_xid").values_list(*_FIELDS)[: limit + 1]]
    if len(found) > limit:
        return Changes((), horizon, True)
    return Changes(tuple(found), horizon, False)
