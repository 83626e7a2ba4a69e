"""Rows of lists as JSON documents, for the API, exports and other views."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.conf import settings

from detection.models import Incident, Notification, Session
from detection.models.session_state import shown_state
from detection.selectors import alerts, incidents
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.patterns import PatternRow
from detection.selectors.row_fields import document_of
from detection.selectors.sessions import SessionRow
from detection.selectors.statistics import Numbers, Row

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations


def session_link(project: str, name: str) -> str:
    """Return the address of a session in the console."""
    return f"{settings.PUBLIC_URL}/p/{project}/sessions/{quote(name, safe='')}"


def incident_link(project: str, public_id: str) -> str:
    """Return the address of an incident in the console."""
    return f"{settings.PUBLIC_URL}/p/{project}/incidents/{public_id}"


def as_time(value: datetime | None) -> str | None:
    """Return a time in ISO 8601 with its offset."""
    return None if value is None else value.isoformat()


def session_document(row: SessionRow | Session, project: str) -> dict[str, Any]:
    """Return a session."""
    return {
        "session": row.external_id,
        "state": shown_state(row.state, row.last_event_at),
        "outcome": row.outcome or None,
        "agent": row.agent,
        "backend": row.backend,
        "model": row.model,
        "parent_session": row.parent_external_id or None,
        "is_demo": row.is_demo,
        "integration": row.integration,
        "started_at": as_time(row.started_at),
        "last_event_at": as_time(row.last_event_at),
        "ended_at": as_time(row.ended_at),
        "calls": row.call_count,
        "blocked": row.blocked_count,
        "warned": row.warned_count,
        "tokens": row.token_count,
        "cost_usd": float(row.cost_usd),
        "last_tool": row.last_tool,
        "meter": {"kind": row.meter_kind, "count": row.meter_count, "limit": row.meter_limit}
        if row.meter_kind
        else None,
        "pending_events": row.last_seq - row.evaluated_seq,
        "stopped": (
            {
                "kind": row.stopped_by_kind,
                "at": as_time(row.stopped_at),
                "by": row.stopped_by,
                "reason": row.stop_reason,
            }
            if row.stopped_by_kind
            else None
        ),
        "would_have_stopped_at_call": row.would_have_stopped_at_call,
        "links": {"session": session_link(project, row.external_id)},
    }


def incident_document(row: IncidentRow | Incident, project: str) -> dict[str, Any]:
    """Return an incident as lists, exports and actions show it."""
    if isinstance(row, Incident):
        row = incidents.row_of(row)
    return {
        **document_of(row),
        "links": {
            "incident": incident_link(project, row.public_id),
            "session": session_link(project, row.session_name),
        },
    }


def pattern_link(project: str, public_id: str) -> str:
    """Return the address of a pattern in the console."""
    return f"{settings.PUBLIC_URL}/p/{project}/patterns/{public_id}"


def pattern_document(row: PatternRow, project: str) -> dict[str, Any]:
    """Return a pattern as lists, exports and actions show it."""
    mute = row.mute
    return {
        "id": row.public_id,
        "title": row.title,
        "kind": row.kind,
        "tool": row.tool,
        "program": row.program,
        "results": row.results,
        "detail": row.detail,
        "state": row.state,
        "has_returned": row.has_returned,
        "label": row.label or None,
        "assignee": row.assignee,
        "mute": mute
        and {
            "reason": mute.reason,
            "by": mute.by,
            "starts_at": as_time(mute.starts_at),
            "ends_at": as_time(mute.ends_at),
            "baseline": mute.baseline,
            "incidents": mute.incidents,
        },
        "incidents": row.incidents,
        "open_incidents": row.open_incidents,
        "sessions": row.sessions,
        "first_seen_at": as_time(row.first_seen_at),
        "last_seen_at": as_time(row.last_seen_at),
        "resolved_at": as_time(row.resolved_at),
        "calls_in_loop": row.calls_in_loop,
        "calls_blocked": row.calls_blocked,
        "cost_usd": float(row.cost_usd),
        "agents": counted(row.agents),
        "models": counted(row.models),
        "trend": [*row.trend],
        "links": {"pattern": pattern_link(project, row.public_id)},
    }


def counted(values: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return values with their numbers of incidents."""
    return [{"name": name, "incidents": number} for name, number in values]


def notification_document(row: WithAnnotations[Notification, alerts.EventCount]) -> dict[str, Any]:
    """Return a notification as lists show it."""
    return {
        "id": row.public_id,
        "destination": row.destination.public_id,
        "route": row.route_name,
        "title": row.title,
        "is_test": row.is_test,
        "state": row.state,
        "event_count": row.event_count,
        "attempt_count": row.attempt_count,
        "created_at": as_time(row.created_at),
        "due_at": as_time(row.due_at),
        "finished_at": as_time(row.finished_at),
    }


def numbers_document(numbers: Numbers) -> dict[str, Any]:
    """Return numbers of the statistics."""
    return asdict(numbers) | {"precision": numbers.precision, "recovery": numbers.recovery}


def group_document(row: Row) -> dict[str, Any]:
    """Return a group of the statistics."""
    return {"key": row.key, **numbers_document(row.numbers)}
