"""Destinations, routes, silences and messages as documents."""

from __future__ import annotations

from typing import Any

import orjson
from django.utils import timezone

from detection.api.responses import as_time
from detection.models import AlertDelivery, AlertDestination, AlertRoute, AlertSilence
from detection.selectors import alerts
from detection.services.alerting import alert_routes


def destination_document(row: AlertDestination) -> dict[str, Any]:
    """Return a destination as the API shows it, without its secrets."""
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
        "failures_today": row.failures_today,  # type: ignore[attr-defined]
        "waiting": row.waiting_count,  # type: ignore[attr-defined]
        "failed": row.failed_count,  # type: ignore[attr-defined]
        "signing_secrets": len(row.signing_secrets),
    }


def _matchers(row: AlertSilence) -> dict[str, Any]:
    return {
        "kinds": row.kinds, "severities": row.severities, "tools": row.tools, "agents": row.agents,
        "backends": row.backends, "models": row.model_names,
    }  # fmt: skip


def route_document(row: AlertRoute) -> dict[str, Any]:
    """Return a route as the API shows it."""
    document = alert_routes.route_as_dict(row)
    document["models"] = document.pop("model_names")
    return {"id": row.public_id, **document}


def silence_document(row: AlertSilence) -> dict[str, Any]:
    """Return a silence as the API shows it."""
    return {
        "id": row.public_id,
        **_matchers(row),
        "reason": row.reason,
        "starts_at": as_time(row.starts_at),
        "ends_at": as_time(row.ends_at),
        "loop": row.loop_id,
        "created_by": row.created_by,
        "held_back": getattr(row, "hidden_count", 0),
    }


def delivery_document(row: AlertDelivery) -> dict[str, Any]:
    """Return a message as the log shows it."""
    return {
        "id": row.public_id,
        "destination": row.destination.public_id,
        "route": row.route_name,
        "title": row.title,
        "is_test": row.is_test,
        "state": row.state,
        "transitions": row.transition_count,  # type: ignore[attr-defined]
        "attempts": row.attempt_count,
        "created_at": as_time(row.created_at),
        "due_at": as_time(row.due_at),
        "finished_at": as_time(row.finished_at),
    }


def delivery_detail_document(row: AlertDelivery, *, shows_answers: bool) -> dict[str, Any]:
    """Return a message with its attempts and what was sent; what receivers answered is not for everybody."""
    tries = [
        {
            "number": attempt.number,
            "at": as_time(attempt.at),
            "duration_ms": attempt.duration_ms,
            "is_success": attempt.is_success,
            "status": attempt.status,
            "problem": attempt.problem,
            "answer": attempt.answer if shows_answers else None,
        }
        for attempt in row.attempts.all()
    ]
    payload = orjson.loads(row.payload) if row.payload else None
    return {**delivery_document(row), "tries": tries, "payload": payload}
