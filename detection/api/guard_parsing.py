"""Parses the body of the guard route, like `event_parsing` that of the events route."""

from __future__ import annotations

from collections.abc import Mapping

from detection.api import event_parsing
from detection.api.event_parsing import (
    MAX_EVENT_BYTES,
    SHOWN_FIELDS,
    UNKNOWN_FIELD,
    event_record,
    event_size,
    name,
    unknown_fields,
)
from detection.api.problems import Problem
from detection.api.schemas.agents import GuardRequestSchema
from detection.integrations.labels import NO_LABELS, Labels
from detection.services.events.event_records import MAX_EVENTS, NAME_CHARACTERS, EventRecord
from detection.services.ingestion.guard import GuardRequest
from detection.strict_json import Doubled, join, loads, shorten

_GUARD_FIELDS = frozenset(GuardRequestSchema.model_fields)
_SHARED = tuple(key for key in GuardRequestSchema.model_fields if key in NAME_CHARACTERS)


def guard_body(body: bytes) -> dict[str, object]:
    """Parse a body of the guard route, which must be an object."""
    document = loads(body)
    if not isinstance(document, dict):
        raise Problem(422, "invalid_type", "The body must be an object.")
    return document


def guard_of(
    document: dict[str, object], size: int, integration: str, given: Labels = NO_LABELS
) -> tuple[GuardRequest, list[dict[str, object]]]:
    """Read a body of the guard route.

    One invalid call rejects the whole request, because the agent waits for one response.

    Parameters
    ----------
    document
        The parsed body.
    size
        Its bytes.
    integration
        The integration that sent it.
    given
        Tags and metadata of the headers; those of the body are added.

    Returns
    -------
    tuple
        The request, and its alterations: ``{"path", "marks"}`` each.

    Raises
    ------
    Problem
        With the path of the field at fault.
    """
    is_large = size > MAX_EVENT_BYTES
    shared = shared_names(document)
    altered = altered_body(document)
    records: dict[str, list[EventRecord]] = {"results": [], "calls": []}
    for key, kind in (("results", "result"), ("calls", "call")):
        items = document.get(key)
        if items is not None and not isinstance(items, list):
            raise Problem(422, "invalid_type", f"`{key}` must be a list.", path=key)
        for index, data in enumerate(items or ()):
            path = f"{key}[{index}]"
            try:
                record = event_record(data, kind, shared, size=event_size(data) if is_large else 0)
            except Problem as problem:
                problem.path = join(path, problem.path)
                raise
            records[key].append(record)
            if record.altered:
                altered.append(altered_item(path, record, data))
    results, calls = records["results"], records["calls"]
    if not results and not calls:
        raise Problem(422, "missing", "`calls` or `results` must contain at least one entry.", path="calls")
    if len(results) + len(calls) > MAX_EVENTS:
        raise Problem(413, "too_many_events", f"A request can have at most {MAX_EVENTS:,} calls and results.")
    own = event_parsing.labels(document.get("tags"), document.get("metadata"))
    return request_about(shared, given.joined(own), integration, (*results,), (*calls,)), altered


def shared_names(document: dict[str, object]) -> dict[str, str]:
    """Read the names that a guard request gives to all its events."""
    shared = {
        key: name(document[key], key, NAME_CHARACTERS[key])
        for key in _SHARED
        if document.get(key) is not None
    }
    if not shared.get("session"):
        raise Problem(422, "missing", "`session` is required.", path="session")
    return shared


def request_about(
    shared: Mapping[str, str],
    labels: Labels,
    integration: str = "guard",
    results: tuple[EventRecord, ...] = (),
    calls: tuple[EventRecord, ...] = (),
) -> GuardRequest:
    """Return a request for a session with these names."""
    return GuardRequest(
        session=shared["session"],
        backend=shared.get("backend", ""),
        model=shared.get("model", ""),
        agent=shared.get("agent", ""),
        parent_session=shared.get("parent_session", ""),
        integration=integration,
        results=results,
        calls=calls,
        labels=labels,
    )


def altered_body(document: dict[str, object]) -> list[dict[str, object]]:
    """Return the alterations of a guard request itself, if there are any."""
    unknown = sorted(document.keys() - _GUARD_FIELDS)[:SHOWN_FIELDS]
    marks = [
        *(["duplicate_key"] if isinstance(document, Doubled) else []),
        *([UNKNOWN_FIELD] if unknown else []),
    ]
    if not marks:
        return []
    item: dict[str, object] = {"path": "", "marks": marks}
    return [item | {"unknown_fields": [shorten(one) for one in unknown]} if unknown else item]


def altered_item(path: str, event: EventRecord, data: dict[str, object] | None = None) -> dict[str, object]:
    """Return the alterations of one event of a guard request; `data` is what was read, where it may name fields."""
    item: dict[str, object] = {"path": path, "marks": event.altered.split(",")}
    if data is None or UNKNOWN_FIELD not in event.altered:
        return item
    return item | {"unknown_fields": unknown_fields(data, is_shared=True)}
