"""Destinations, routes, silences and notifications as JSON documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from django.utils import timezone

from detection.models import AlertDestination, AlertRoute, AlertSilence, Notification
from detection.selectors import alerts
from detection.services.alerting import alert_routes, destinations
from detection.web.documents import as_time, notification_document

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations


def destination_document(row: WithAnnotations[AlertDestination, alerts.DestinationHealth]) -> dict[str, Any]:
    """Return a destination without its secrets."""
    return {
        "id": row.public_id,
        "name": row.name,
        "kind": row.kind,
        "address": row.shown_address,
        "is_enabled": row.is_enabled,
        "state": alerts.destination_state(row, timezone.now()),
        "paused_until": as_time(row.paused_until),
        "last_success_at": as_time(row.last_success_at),
        "last_failure_at": as_time(row.last_failure_at),
        "last_problem": row.last_problem,
        "failures_today": row.failures_today,
        "waiting": row.waiting_count,
        "failed": row.failed_count,
        "signing_secrets": len(row.signing_secrets),
        "version": destinations.destination_version(row),
    }


def route_document(row: AlertRoute) -> dict[str, Any]:
    """Return a route."""
    document = alert_routes.route_as_dict(row)
    document["models"] = document.pop("model_names")
    return {"id": row.public_id, **document, "version": alert_routes.route_version(row)}


def silence_document(row: AlertSilence, suppressed_count: int = 0) -> dict[str, Any]:
    """Return a silence."""
    return {
        "id": row.public_id,
        "kinds": row.kinds,
        "severities": row.severities,
        "tools": row.tools,
        "agents": row.agents,
        "backends": row.backends,
        "models": row.model_names,
        "reason": row.reason,
        "starts_at": as_time(row.starts_at),
        "ends_at": as_time(row.ends_at),
        "loop": row.loop_id,
        "pattern": row.pattern.public_id if row.pattern else None,
        "created_by": row.created_by,
        "suppressed_count": suppressed_count,
    }


def notification_detail_document(
    row: WithAnnotations[Notification, alerts.EventCount], *, shows_responses: bool
) -> dict[str, Any]:
    """Return a notification with its attempts and payload; responses of receivers only if `shows_responses`."""
    attempts = [
        {
            "number": attempt.number,
            "at": as_time(attempt.at),
            "duration_ms": attempt.duration_ms,
            "is_success": attempt.is_success,
            "status": attempt.status,
            "problem": attempt.problem,
            "response": attempt.response if shows_responses else None,
        }
        for attempt in row.attempts.all()
    ]
    payload = orjson.loads(row.payload) if row.payload else None
    return {**notification_document(row), "attempts": attempts, "payload": payload}
