"""Parses events, and the body of the events route, into service input, in plain typed code, because agents wait for it.

The strict parser decides which JSON is accepted. `schemas.agents` describes these bodies in the OpenAPI document, and
has the names of the fields and the values of choices; limits are those of `event_records`. `guard_parsing` parses the
body of the guard route.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, get_args

from detection.api.problems import Problem, of_json
from detection.api.schemas.agents import EventSchema, EventTypeName, OutcomeName, RoleName
from detection.engine.open_calls import is_assigned
from detection.integrations.labels import LabelError, Labels, labels_of
from detection.services.errors import NotStorable
from detection.services.events.event_records import (
    DIGEST_CHARACTERS,
    EARLIEST_YEAR,
    LATEST_YEAR,
    MAX_COST_USD,
    MAX_EVENTS,
    MAX_INTEGER,
    NAME_CHARACTERS,
    EventRecord,
)
from detection.strict_json import Cleaner, Doubled, JsonProblem, compact, loads, shorten

MAX_EVENT_BYTES: Final = 256 * 1024
KEPT_CHARACTERS: Final = 16_384
"""Characters of a content that is cut here; at least as many as are stored."""
EVENT_TYPES: Final = get_args(EventTypeName)
OUTCOMES: Final = get_args(OutcomeName)
ROLES: Final = get_args(RoleName)

_EVENT_FIELDS = frozenset(EventSchema.model_fields)
_LABELS = frozenset(("tags", "metadata"))
_FIELDS_BELOW_SHARED = _EVENT_FIELDS - _LABELS
"""Of an event whose request has what is about the session."""
UNKNOWN_FIELD: Final = "unknown_field"
SHOWN_FIELDS: Final = 8
_NOT_OF_HEARTBEATS = _EVENT_FIELDS - {*NAME_CHARACTERS, "type", "occurred_at"}
_NAMES: Final = (*NAME_CHARACTERS.items(),)
_NOTHING_SHARED: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Batch:
    """The valid events of one request with their positions, and the errors of the others.

    Attributes
    ----------
    is_single
        Whether the body is an event, which has the whole response to itself.
    unknown_fields
        Fields that no event has and that were dropped, by the position of their event.
    """

    events: list[EventRecord] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    is_single: bool = False
    unknown_fields: dict[int, list[str]] = field(default_factory=dict)

    def reject(self, index: int, problem: Problem) -> None:
        """Add the error of one event."""
        self.rejected.append(
            {"index": index, "code": problem.code, "path": problem.path, "hint": problem.detail}
        )

    def keep(self, is_kept: Callable[[str], bool], problem: Problem) -> int:
        """Reject the valid events of other sessions than are to be kept; return how many these are."""
        places = [*zip(self.events, self.positions, strict=True)]
        kept = [place for place in places if is_kept(place[0].session)]
        for event, position in places:
            if not is_kept(event.session):
                self.reject(position, problem)
        self.events, self.positions = [event for event, _ in kept], [position for _, position in kept]
        self.rejected.sort(key=itemgetter("index"))
        return len(places) - len(kept)

    def reject_stored(self, numbers: Iterable[int]) -> None:
        """Add the error of valid events that could not be stored, by their place among the valid ones."""
        for number in numbers:
            error = NotStorable()
            self.reject(self.positions[number], Problem(error.status, error.code, error.detail))
        self.rejected.sort(key=itemgetter("index"))


def events_of(body: bytes, *, is_ndjson: bool) -> Batch:
    """Read a body of the events route: one object, ``{"events": [...]}`` or one object per line.

    Raises
    ------
    Problem
        If the body or its only event is invalid.
    """
    batch = Batch()
    if is_ndjson:
        _read_lines(body, batch)
        return batch
    document = loads(body)
    if not isinstance(document, dict):
        raise Problem(422, "invalid_type", 'The body must be an event or {"events": [...]}.')
    if "events" not in document:
        event = event_record(document, size=len(body))
        unknown = {0: unknown_fields(document)} if UNKNOWN_FIELD in event.altered else {}
        return Batch([event], [0], is_single=True, unknown_fields=unknown)
    events = document["events"]
    if not isinstance(events, list):
        raise Problem(422, "invalid_type", "`events` must be a list of events.", path="events")
    _reject_unknown(document, frozenset(("events",)))
    _check_number(len(events))
    is_large = len(body) > MAX_EVENT_BYTES
    for index, data in enumerate(events):
        _add(batch, index, data, event_size(data) if is_large else 0)
    return batch


def _read_lines(body: bytes, batch: Batch) -> None:
    lines = [line for line in body.split(b"\n") if line and not line.isspace()]
    _check_number(len(lines))
    for index, line in enumerate(lines):
        try:
            data = loads(line)
        except JsonProblem as problem:
            batch.reject(index, of_json(problem))
            continue
        _add(batch, index, data, len(line))


def _add(batch: Batch, index: int, data: Any, size: int) -> None:
    try:
        event = event_record(data, size=size)
    except Problem as problem:
        batch.reject(index, problem)
        return
    batch.events.append(event)
    batch.positions.append(index)
    if UNKNOWN_FIELD in event.altered:
        batch.unknown_fields[index] = unknown_fields(data)


def _check_number(number: int) -> None:
    if not number:
        raise Problem(422, "missing", "`events` must contain at least one event.", path="events")
    if number > MAX_EVENTS:
        raise Problem(
            413, "too_many_events", f"A request can have at most {MAX_EVENTS:,} events.", path="events"
        )


def event_size(data: Any) -> int:
    """Return the size of an event in bytes."""
    try:
        return len(compact(data).encode("utf-8", "surrogatepass"))
    except (TypeError, ValueError, RecursionError):
        return 0  # contains a value that is rejected anyway


def event_record(
    data: Any, kind: str = "", shared: Mapping[str, str] = _NOTHING_SHARED, *, size: int = 0
) -> EventRecord:
    """Read one event.

    Parameters
    ----------
    kind
        Type of the event, if its place in the request implies it; otherwise the event names it.
    shared
        Names that the request gives to all its events; an event may override any of them except the session.
    size
        Size of the event in bytes, if it has to be checked.

    Raises
    ------
    Problem
        422 with the field at fault, or 413 for an event of more than 256 KB without its content.
    """
    if not isinstance(data, dict):
        raise Problem(422, "invalid_type", "An event must be an object.")
    kind = kind or _event_type(data.get("type"))
    if size > MAX_EVENT_BYTES:
        data = _without_end(data, kind)
    if shared and data.get("session") not in (None, shared["session"]):
        raise Problem(422, "invalid_value", "`session` must be the session of the request.", path="session")
    names = _names(data, kind, shared)
    cleaner = Cleaner()
    arguments = content = None
    tokens, cost_usd = 0, 0.0
    if kind == "call":
        arguments = _arguments(data.get("arguments"), cleaner)
        tokens, cost_usd = _usage(data.get("usage"))
    elif kind == "usage":
        tokens, cost_usd = _usage_of_event(data, names)
    else:
        content = _content(kind, data, cleaner)
        names |= _digest_of_content(data) | _role(kind, data.get("role"))
        if kind == "result" and not names.get("call_id"):
            arguments = _arguments_of_unnamed_call(data, names, cleaner)
    marks = cleaner.marks
    if isinstance(data, Doubled):
        marks["duplicate_key"] = None
    if not data.keys() <= (_FIELDS_BELOW_SHARED if shared else _EVENT_FIELDS):
        marks[UNKNOWN_FIELD] = None
    if not (shared or data.keys().isdisjoint(_LABELS)):
        names["labels"] = labels(data.get("tags"), data.get("metadata"))
    return EventRecord(
        type=kind,
        arguments=arguments,
        content=content,
        is_error=_is_error(data.get("is_error")),
        occurred_at=_time(data.get("occurred_at")),
        tokens=tokens,
        cost_usd=cost_usd,
        altered=",".join(marks)[:120],
        **names,
    )


def unknown_fields(data: dict[str, object], *, is_shared: bool = False) -> list[str]:
    """Return the names of fields of an event that were dropped, at most `SHOWN_FIELDS`."""
    known = _FIELDS_BELOW_SHARED if is_shared else _EVENT_FIELDS
    return [shorten(one) for one in sorted(data.keys() - known)[:SHOWN_FIELDS]]


def labels(tags: object, metadata: object) -> Labels:
    """Read the tags and metadata of an event or a guard request."""
    try:
        return labels_of(tags, metadata)
    except LabelError as error:
        raise Problem(422, error.code, error.detail, path=error.path) from None


def _names(data: dict[str, object], kind: str, shared: Mapping[str, str]) -> dict[str, Any]:
    """Read the names of an event; only a call has a directory."""
    names: dict[str, Any] = {**shared}
    for key, length in _NAMES:
        value = data.get(key)
        if value is None:
            continue
        # As in `name`, which raises: called for each name of each event, it takes as long as the parser.
        is_valid = type(value) is str and len(value) <= length and value.isprintable()
        names[key] = value if is_valid else name(value, key, length)
    if kind != "call":
        names.pop("cwd", None)
    if not names.get("session"):
        raise Problem(422, "missing", "`session` is required.", path="session")
    if kind == "call" and not names.get("tool"):
        raise Problem(422, "missing", "`tool` is required.", path="tool")
    for key in ("call_id", "round") if kind == "call" else ():
        if is_assigned(names.get(key, "")):
            raise Problem(
                422,
                "reserved_name",
                f"`{key}` must not have the form seq-<number>, which LoopGuard assigns.",
                path=key,
            )
    return names


def _without_end(data: dict[str, object], kind: str) -> dict[str, object]:
    """Return a too large event with the beginning of its content, and the digest and length of the whole."""
    content = data.get("content")
    rest = {key: value for key, value in data.items() if key != "content"}
    if kind == "call" or content is None or event_size(rest) > MAX_EVENT_BYTES:
        raise Problem(
            413,
            "event_too_large",
            f"An event without its content can have at most {MAX_EVENT_BYTES:,} bytes.",
        )
    text = content if isinstance(content, str) else compact(content)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return (
        {"content_digest": digest, "content_length": len(text)} | rest | {"content": text[:KEPT_CHARACTERS]}
    )


def _digest_of_content(data: dict[str, object]) -> dict[str, object]:
    """Read the digest and length of a content that was sent truncated."""
    given: dict[str, object] = {}
    if data.get("content_digest") is not None:
        given["tail_digest"] = name(data["content_digest"], "content_digest", DIGEST_CHARACTERS)
    length = data.get("content_length")
    if length is not None:
        if not isinstance(length, int) or isinstance(length, bool):
            raise Problem(422, "invalid_type", "`content_length` must be an integer.", path="content_length")
        if not 0 <= length <= MAX_INTEGER:
            raise Problem(
                422,
                "out_of_range",
                f"`content_length` must be between 0 and {MAX_INTEGER:,}.",
                path="content_length",
            )
        given["content_length"] = length
    return given


def _event_type(kind: Any) -> str:
    if kind not in EVENT_TYPES:
        code = "missing" if kind is None else "invalid_value"
        raise Problem(422, code, f"`type` must be one of {', '.join(EVENT_TYPES)}.", path="type")
    return str(kind)


def _check_heartbeat(data: dict[str, Any]) -> None:
    """Check that a heartbeat names its call and has no fields of other event types."""
    if not data.get("call_id"):
        raise Problem(422, "missing", "`call_id` is required in a heartbeat.", path="call_id")
    for key in sorted(_NOT_OF_HEARTBEATS & data.keys()):
        if data[key] is not None:
            raise Problem(422, "unknown_field", f"`{key}` is not a field of a heartbeat.", path=key)


def name(value: Any, key: str, length: int) -> str:
    """Read the value of a name: printable text of a bounded length.

    Raises
    ------
    Problem
        422 ``invalid_type``, ``too_long`` or ``invalid_characters``.
    """
    if not isinstance(value, str):
        raise Problem(422, "invalid_type", f"`{key}` must be a string.", path=key)
    if len(value) > length:
        raise Problem(422, "too_long", f"`{key}` must have at most {length} characters.", path=key)
    if not value.isprintable():
        raise Problem(422, "invalid_characters", f"`{key}` must contain printable characters only.", path=key)
    return value


def _arguments(value: Any, cleaner: Cleaner) -> str | None:
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return cleaner.json_text(value) if value.lstrip()[:1] in ("{", "[") else cleaner.text(value)
        if isinstance(value, dict):
            return compact(cleaner.value(value))
    except JsonProblem as problem:
        raise of_json(problem, "arguments") from None
    raise Problem(422, "invalid_type", "`arguments` must be an object or JSON text.", path="arguments")


def _arguments_of_unnamed_call(
    data: dict[str, object], names: dict[str, Any], cleaner: Cleaner
) -> str | None:
    """Read the arguments by which a result without a call id names its call."""
    arguments = _arguments(data.get("arguments"), cleaner)
    if arguments is not None and not names.get("tool"):
        raise Problem(
            422, "missing", "`tool` is required in a result that names its call by `arguments`.", path="tool"
        )
    return arguments


def _content(kind: str, data: dict[str, object], cleaner: Cleaner) -> str | None:
    """Read the text of a result or message, or the outcome of a run."""
    if kind == "end":
        outcome = "completed" if data.get("outcome") is None else data["outcome"]
        if outcome not in OUTCOMES:
            raise Problem(
                422, "invalid_value", f"`outcome` must be one of {', '.join(OUTCOMES)}.", path="outcome"
            )
        return str(outcome)
    if kind == "heartbeat":
        _check_heartbeat(data)
    value = data.get("content")
    if value is None:
        return None
    if isinstance(value, str):
        return cleaner.text(value)
    try:
        return compact(cleaner.value(value))
    except JsonProblem as problem:
        raise of_json(problem, "content") from None


def _is_error(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise Problem(422, "invalid_type", "`is_error` must be true, false or null.", path="is_error")


def _time(value: Any) -> datetime | None:
    if value is None:
        return None
    hint = "`occurred_at` must be ISO 8601 with an offset, as in 2026-11-21T12:00:00Z."
    if not isinstance(value, str) or len(value) > 64:
        raise Problem(422, "invalid_value", hint, path="occurred_at")
    try:
        at = datetime.fromisoformat(value)
        if at.tzinfo is None or not EARLIEST_YEAR <= at.year <= LATEST_YEAR:
            raise ValueError(value)
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Problem(422, "invalid_value", hint, path="occurred_at") from None


def _role(kind: str, value: Any) -> dict[str, str]:
    """Read who wrote a message."""
    if kind != "message" or value is None:
        return {}
    if value not in ROLES:
        raise Problem(422, "invalid_value", f"`role` must be one of {', '.join(ROLES)}.", path="role")
    return {"role": value}


def _usage_of_event(data: dict[str, object], names: dict[str, Any]) -> tuple[int, float]:
    """Read a usage event; the usage of a round counts once."""
    if data.get("usage") is None:
        raise Problem(422, "missing", "`usage` is required.", path="usage")
    if names.get("round") and not names.get("id"):
        place = compact([names["session"], names["round"]]).encode("utf-8", "surrogatepass")
        names["id"] = f"usage-{hashlib.blake2b(place, digest_size=16).hexdigest()}"
    return _usage(data["usage"])


def _usage(value: Any) -> tuple[int, float]:
    if value is None:
        return 0, 0.0
    if not isinstance(value, dict):
        raise Problem(422, "invalid_type", "`usage` must be an object.", path="usage")
    tokens = sum(_number(value, key, MAX_INTEGER, whole=True) for key in ("input_tokens", "output_tokens"))
    return min(int(tokens), MAX_INTEGER), float(_number(value, "cost_usd", MAX_COST_USD, whole=False))


def _number(usage: dict[str, object], key: str, maximum: int, *, whole: bool) -> float:
    value = usage.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or (whole and isinstance(value, float)):
        raise Problem(
            422,
            "invalid_type",
            f"`usage.{key}` must be {'an integer' if whole else 'a number'}.",
            path=f"usage.{key}",
        )
    try:
        Cleaner().value(value)
    except JsonProblem as problem:
        raise of_json(problem, f"usage.{key}") from None
    if not 0 <= value <= maximum or not math.isfinite(value):
        raise Problem(
            422, "out_of_range", f"`usage.{key}` must be between 0 and {maximum:,}.", path=f"usage.{key}"
        )
    return float(value) if not whole else value


def _reject_unknown(document: dict[str, object], known: frozenset[str]) -> None:
    unknown = document.keys() - known
    if unknown:
        raise Problem(
            422,
            "unknown_field",
            f"`{shorten(min(unknown))}` is not a field of this body.",
            path=shorten(min(unknown)),
        )
