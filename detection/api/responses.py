"""JSON responses, and rows as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import orjson
from django.http import HttpResponse

from detection.models import (
    IncidentActivity,
    LimitNotice,
    PatternActivity,
    QuarantinedEvent,
    StoredSettings,
    ToolOverride,
)
from detection.models.stored_verdict import StoredVerdict
from detection.selectors.patterns import SharedFact
from detection.selectors.sessions import CallRow, CommandReplyRow
from detection.services.policies.overrides import override_version
from detection.web.documents import as_time, counted

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


def call_document(row: CallRow) -> dict[str, Any]:
    """Return a call with its verdict and result."""
    verdict = row.verdict or StoredVerdict()
    result = row.result
    return {
        "seq": row.seq,
        "number": row.call_number or None,
        "call_id": row.call_id,
        "tool": row.tool,
        "arguments": row.arguments,
        "cwd": row.cwd or None,
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
        "message": verdict.message,
        "incident": verdict.incident,
        "rung": verdict.rung,
        "ending": verdict.ending,
        "detection_number": verdict.detection_number,
        "finding": verdict.finding,
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


def shared_document(facts: dict[str, SharedFact]) -> dict[str, Any]:
    """Return what the incidents of a pattern share."""
    names = {"loop_id": "loop", "session_name": "session"}
    return {
        names.get(name, name): {
            "is_shared": fact.is_shared,
            "distinct": fact.distinct,
            "values": counted(fact.values),
        }
        for name, fact in facts.items()
    }


def activity_document(entry: IncidentActivity | PatternActivity) -> dict[str, Any]:
    """Return an entry of the activity of an incident or pattern."""
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


def override_document(row: StoredSettings) -> dict[str, Any]:
    """Return a stored override or tool rule."""
    if isinstance(row, ToolOverride):
        own: dict[str, Any] = {
            "pattern": row.pattern,
            "tool_class": row.tool_class or None,
            "ignore_arguments": row.ignore_arguments,
            "volatile_result_fields": row.volatile_result_fields,
            "exempt": row.exempt,
        }
    else:
        scope = row.scope
        names = {name: getattr(scope, name) or None for name in row.scope_fields}
        own = {"scope": scope.kind, **names, "source": str(scope)}
    return {
        **own,
        "values": row.values,
        "note": row.note,
        "expires_at": as_time(row.expires_at),
        "updated_at": as_time(row.updated_at),
        "version": override_version(row),
    }
