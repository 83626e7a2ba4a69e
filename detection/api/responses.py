"""JSON responses, and rows as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

import orjson
from django.conf import settings
from django.http import HttpResponse

from detection.models import (
    Incident,
    IncidentActivity,
    LimitNotice,
    Override,
    QuarantinedEvent,
    Session,
    ToolOverride,
)
from detection.models.session_state import shown_state
from detection.selectors import incidents
from detection.selectors.incidents import IncidentRow
from detection.selectors.sessions import CallRow, CommandReplyRow, SessionRow

LIST_AS_FILE: Final = {
    "responses": {
        200: {
            "description": "The same filters and order as the list.",
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
            },
        }
    }
}
"""OpenAPI description of the export of a list."""


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"cannot be JSON: {type(value).__name__}")


def json_response(document: Any, status: int = 200) -> HttpResponse:
    """Return a document as a JSON response; times are ISO 8601 with an offset."""
    return HttpResponse(
        orjson.dumps(document, default=_plain), status=status, content_type="application/json"
    )


def list_response(documents: Iterable[dict[str, Any]], next_cursor: str | None = None) -> HttpResponse:
    """Return a page of a list; without a cursor, it is the last one."""
    return json_response({"items": [*documents], "next_cursor": next_cursor})


def empty_response() -> HttpResponse:
    """Return 204 No Content."""
    return HttpResponse(status=204)


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


def call_document(row: CallRow) -> dict[str, Any]:
    """Return a call with its verdict and result."""
    verdict = row.verdict or {}
    result = row.result
    return {
        "seq": row.seq,
        "number": row.call_number or None,
        "call_id": row.call_id,
        "tool": row.tool,
        "arguments": row.arguments,
        "round": row.round or None,
        "run": row.run or None,
        "backend": row.backend,
        "model": row.model,
        "agent": row.agent,
        "tokens": row.tokens,
        "cost_usd": float(row.cost_usd),
        "occurred_at": as_time(row.occurred_at),
        "received_at": as_time(row.received_at),
        "altered": row.altered.split(",") if row.altered else [],
        "key": row.call_key,
        "decision": row.decision,
        "message": verdict.get("message", ""),
        "incident": verdict.get("incident"),
        "rung": verdict.get("rung"),
        "detection_number": verdict.get("detection_number", 0),
        "finding": verdict.get("finding"),
        "result": result
        and {
            "seq": result.seq,
            "content": result.content,
            "content_length": result.content_length,
            "is_error": result.is_error,
            "received_at": as_time(result.received_at),
            "altered": result.altered.split(",") if result.altered else [],
        },
    }


def command_reply_document(row: CommandReplyRow) -> dict[str, Any]:
    """Return the replies to the in-chat commands of a message as the API shows them."""
    return {"seq": row.seq, "received_at": as_time(row.received_at), "lines": list(row.lines)}


def incident_document(row: IncidentRow | Incident, project: str) -> dict[str, Any]:
    """Return an incident as lists, exports and actions show it."""
    if isinstance(row, Incident):
        row = incidents.row_of(row)
    return {
        "id": row.public_id,
        "session": row.session_name,
        "agent": row.agent,
        "backend": row.backend,
        "model": row.model,
        "is_demo": row.is_demo,
        "loop": row.loop_id,
        "group": row.group_id,
        "kind": row.kind,
        "tool": row.tool,
        "count": row.count,
        "limit": row.limit,
        "window_seconds": row.window_seconds,
        "confidence": row.confidence,
        "decision": row.decision,
        "rung": row.rung or None,
        "detections": row.detections,
        "was_guarded": row.was_guarded,
        "calls_blocked": row.calls_blocked,
        "calls_in_loop": row.calls_in_loop,
        "cost_usd": float(row.cost_usd),
        "first_call_number": row.first_call_number,
        "last_call_number": row.last_call_number,
        "first_seq": row.first_seq,
        "last_seq": row.last_seq,
        "status": row.status,
        "label": row.label or None,
        "needs_acknowledgement": row.needs_acknowledgement,
        "is_active": row.is_active,
        "recovered": row.recovered,
        "acknowledged_by": row.acknowledged_by,
        "snoozed_until": as_time(row.snoozed_until),
        "snoozed_until_worse": row.snoozed_until_worse,
        "opened_at": as_time(row.opened_at),
        "last_seen_at": as_time(row.last_seen_at),
        "ended_at": as_time(row.ended_at),
        "resolved_at": as_time(row.resolved_at),
        "links": {
            "incident": incident_link(project, row.public_id),
            "session": session_link(project, row.session_name),
        },
    }


def activity_document(entry: IncidentActivity) -> dict[str, Any]:
    """Return an entry of an incident's activity."""
    return {"at": as_time(entry.at), "actor": entry.actor, "action": entry.action, "note": entry.note}


def notice_document(notice: LimitNotice) -> dict[str, Any]:
    """Return a limit notice."""
    return {
        "kind": notice.kind,
        "unit": notice.unit,
        "used": notice.used,
        "limit": notice.limit,
        "seq": notice.seq,
        "call_number": notice.call_number or None,
        "tool": notice.tool,
        "at": as_time(notice.at),
    }


def quarantined_event_document(row: QuarantinedEvent) -> dict[str, Any]:
    """Return a quarantined event."""
    return {
        "seq": row.seq,
        "type": row.type,
        "tool": row.tool,
        "error": row.error,
        "traceback": row.traceback,
        "at": as_time(row.at),
    }


def override_document(override: Override) -> dict[str, Any]:
    """Return a stored override."""
    scope = override.scope
    return {
        "scope": scope.kind,
        "agent": scope.agent or None,
        "backend": scope.backend or None,
        "model": scope.model or None,
        "source": str(scope),
        "values": override.values,
        "note": override.note,
        "updated_at": as_time(override.updated_at),
    }


def tool_rule_document(rule: ToolOverride) -> dict[str, Any]:
    """Return a stored tool rule."""
    return {
        "pattern": rule.pattern,
        "tool_class": rule.tool_class or None,
        "ignore_arguments": rule.ignore_arguments,
        "volatile_result_fields": rule.volatile_result_fields,
        "values": rule.values,
        "exempt": rule.exempt,
        "note": rule.note,
        "updated_at": as_time(rule.updated_at),
    }
