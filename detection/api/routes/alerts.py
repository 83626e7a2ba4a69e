"""Alerts: destinations, routes, silences, and the log of what was sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Body, Query, Router

from detection.api.alert_schemas import (
    DeliveryDetail,
    DeliveryOut,
    DeliveryQuery,
    DestinationChange,
    DestinationIn,
    DestinationOut,
    Matchers,
    NewDestination,
    ResendIn,
    ResendOut,
    RouteIn,
    RouteOut,
    SecretOut,
    SilenceIn,
    SilenceOut,
    SilenceQuery,
)
from detection.api.answers import answer
from detection.api.auth import ApiKey, actor
from detection.api.limits import JSON
from detection.api.queries import existing_name, refuse_unknown
from detection.api.schemas import Listed
from detection.models import AlertDelivery, AlertDestination, AlertRoute, AlertSilence, Scope
from detection.selectors import alerts as selector
from detection.selectors.alerts import DeliveryFilters
from detection.services import destinations, routes
from detection.services.errors import NotFound
from detection.services.keys import Principal

router = Router(tags=["alerts"])
_read = ApiKey(Scope.READ)
_admin = ApiKey(Scope.ADMIN, (JSON,))
_admin_bare = ApiKey(Scope.ADMIN)


def _principal(request: HttpRequest) -> Principal:
    principal: Principal = request.auth  # type: ignore[attr-defined]
    return principal


def _project_id(request: HttpRequest) -> int:
    return _principal(request).project_id


def _time(value: datetime | None) -> str | None:
    return value.isoformat() if value else None


def _destination_document(project_id: int, public_id: str) -> dict[str, Any]:
    row = selector.get_destination(project_id, public_id)
    if row is None:
        raise NotFound("There is no such destination in this project.")
    return destination_document(row)


def destination_document(row: AlertDestination) -> dict[str, Any]:
    """Return a destination as the API shows it, without its secrets."""
    return {
        "id": row.public_id,
        "name": row.name,
        "kind": row.kind,
        "address": row.shown_address,
        "is_enabled": row.is_enabled,
        "state": selector.destination_state(row, timezone.now()),
        "paused_until": _time(row.paused_until),
        "last_success_at": _time(row.last_success_at),
        "last_failure_at": _time(row.last_failure_at),
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
    document = routes.route_as_dict(row)
    document["models"] = document.pop("model_names")
    return {"id": row.public_id, **document}


def silence_document(row: AlertSilence) -> dict[str, Any]:
    """Return a silence as the API shows it."""
    return {
        "id": row.public_id,
        **_matchers(row),
        "reason": row.reason,
        "starts_at": _time(row.starts_at),
        "ends_at": _time(row.ends_at),
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
        "created_at": _time(row.created_at),
        "due_at": _time(row.due_at),
        "finished_at": _time(row.finished_at),
    }


def _values(body: Matchers, *left_out: str) -> dict[str, Any]:
    values = body.dict(exclude={*left_out})
    values["model_names"] = values.pop("models")
    return values


@router.get(
    "/alerts/destinations",
    auth=_read,
    response={200: Listed[DestinationOut]},
    operation_id="listDestinations",
    summary="List destinations",
)
def list_destinations(request: HttpRequest) -> HttpResponse:
    """List where messages can go and how each place fares."""
    rows = selector.destinations_of(_project_id(request))
    return answer({"items": [destination_document(row) for row in rows], "next_cursor": None})


@router.post(
    "/alerts/destinations",
    auth=_admin,
    response={201: NewDestination},
    operation_id="createDestination",
    summary="Make a destination",
)
def create_destination(request: HttpRequest, body: Body[DestinationIn]) -> HttpResponse:
    """Make a destination; its address is checked now and with every message. The signing secret is in this answer only."""
    project_id = _project_id(request)
    row, secret = destinations.create_destination(project_id, actor(request), **body.dict())
    document = _destination_document(project_id, row.public_id)
    return answer({**document, "signing_secret": secret or None}, 201)


@router.patch(
    "/alerts/destinations/{destination_id}",
    auth=_admin,
    response={200: DestinationOut},
    operation_id="changeDestination",
    summary="Change a destination",
)
def change_destination(
    request: HttpRequest, destination_id: str, body: Body[DestinationChange]
) -> HttpResponse:
    """Rename, readdress, enable or disable a destination; what waits for a disabled one is kept."""
    project_id, name = _project_id(request), existing_name(destination_id)
    destinations.change_destination(project_id, name, actor(request), **body.dict(exclude_unset=True))
    return answer(_destination_document(project_id, name))


@router.delete(
    "/alerts/destinations/{destination_id}",
    auth=_admin_bare,
    response={204: None},
    operation_id="deleteDestination",
    summary="Remove a destination",
)
def delete_destination(request: HttpRequest, destination_id: str) -> HttpResponse:
    """Remove a destination with its messages."""
    destinations.delete_destination(_project_id(request), existing_name(destination_id), actor(request))
    return HttpResponse(status=204)


@router.post(
    "/alerts/destinations/{destination_id}/test",
    auth=_admin_bare,
    response={200: DeliveryDetail},
    operation_id="testDestination",
    summary="Send a test message",
)
def send_test(request: HttpRequest, destination_id: str) -> HttpResponse:
    """Send a test message and wait, a few seconds at most, for what comes of it."""
    message = destinations.send_test(_project_id(request), existing_name(destination_id), actor(request))
    return _delivery(request, message.public_id)


@router.post(
    "/alerts/destinations/{destination_id}/secrets",
    auth=_admin_bare,
    response={201: SecretOut},
    operation_id="addSigningSecret",
    summary="Add a signing secret",
)
def add_secret(request: HttpRequest, destination_id: str) -> HttpResponse:
    """Add a secret: messages are signed with all of them, at most three, until the older ones are retired."""
    secret = destinations.add_signing_secret(
        _project_id(request), existing_name(destination_id), actor(request)
    )
    return answer({"signing_secret": secret}, 201)


@router.delete(
    "/alerts/destinations/{destination_id}/secrets",
    auth=_admin_bare,
    response={204: None},
    operation_id="retireSigningSecrets",
    summary="Retire the older signing secrets",
)
def retire_secrets(request: HttpRequest, destination_id: str) -> HttpResponse:
    """Keep the newest secret only."""
    destinations.retire_signing_secrets(_project_id(request), existing_name(destination_id), actor(request))
    return HttpResponse(status=204)


@router.get(
    "/alerts/routes",
    auth=_read,
    response={200: Listed[RouteOut]},
    operation_id="listRoutes",
    summary="List routes",
)
def list_routes(request: HttpRequest) -> HttpResponse:
    """List routes in the order in which they are tried."""
    rows = selector.routes_of(_project_id(request))
    return answer({"items": [route_document(row) for row in rows], "next_cursor": None})


@router.post(
    "/alerts/routes",
    auth=_admin,
    response={201: RouteOut},
    operation_id="createRoute",
    summary="Make a route",
)
def create_route(request: HttpRequest, body: Body[RouteIn]) -> HttpResponse:
    """Make a route."""
    row = routes.save_route(_project_id(request), actor(request), **_values(body))
    return answer(route_document(row), 201)


@router.put(
    "/alerts/routes/{route_id}",
    auth=_admin,
    response={200: RouteOut},
    operation_id="replaceRoute",
    summary="Replace a route",
)
def replace_route(request: HttpRequest, route_id: str, body: Body[RouteIn]) -> HttpResponse:
    """Replace a route whole."""
    name = existing_name(route_id)
    row = routes.save_route(_project_id(request), actor(request), public_id=name, **_values(body))
    return answer(route_document(row))


@router.delete(
    "/alerts/routes/{route_id}",
    auth=_admin_bare,
    response={204: None},
    operation_id="deleteRoute",
    summary="Remove a route",
)
def delete_route(request: HttpRequest, route_id: str) -> HttpResponse:
    """Remove a route; messages that it has made are still sent."""
    routes.delete_route(_project_id(request), existing_name(route_id), actor(request))
    return HttpResponse(status=204)


@router.get(
    "/alerts/silences",
    auth=_read,
    response={200: Listed[SilenceOut]},
    operation_id="listSilences",
    summary="List silences",
)
def list_silences(request: HttpRequest, query: Query[SilenceQuery]) -> HttpResponse:
    """List silences that run or are planned, or with ``over=true`` those that ended last."""
    refuse_unknown(request, SilenceQuery)
    rows = selector.silences_of(_project_id(request), over=query.over)
    return answer({"items": [silence_document(row) for row in rows], "next_cursor": None})


@router.post(
    "/alerts/silences",
    auth=_admin,
    response={201: SilenceOut},
    operation_id="createSilence",
    summary="Begin a silence",
)
def create_silence(request: HttpRequest, body: Body[SilenceIn]) -> HttpResponse:
    """Hold messages back until a time."""
    values = _values(body, "loop")
    row = routes.create_silence(_project_id(request), actor(request), loop_id=body.loop, **values)
    return answer(silence_document(row), 201)


@router.delete(
    "/alerts/silences/{silence_id}",
    auth=_admin_bare,
    response={204: None},
    operation_id="endSilence",
    summary="End a silence",
)
def end_silence(request: HttpRequest, silence_id: str) -> HttpResponse:
    """End a silence now."""
    routes.end_silence(_project_id(request), existing_name(silence_id), actor(request))
    return HttpResponse(status=204)


@router.get(
    "/alerts/deliveries",
    auth=_read,
    response={200: Listed[DeliveryOut]},
    operation_id="listDeliveries",
    summary="List messages",
)
def list_deliveries(request: HttpRequest, query: Query[DeliveryQuery]) -> HttpResponse:
    """List messages, the newest first."""
    refuse_unknown(request, DeliveryQuery)
    filters = DeliveryFilters(**query.dict(exclude={"cursor", "limit"}))
    page = selector.list_deliveries(_project_id(request), filters, query.cursor, query.limit)
    return answer({"items": [delivery_document(row) for row in page.items], "next_cursor": page.next_cursor})


@router.post(
    "/alerts/deliveries/resend",
    auth=_admin,
    response={200: ResendOut},
    operation_id="resendDeliveries",
    summary="Send messages again",
)
def resend(request: HttpRequest, body: Body[ResendIn]) -> HttpResponse:
    """Send messages again under the ids they had; without ids every failed one."""
    return answer({"count": destinations.resend(_project_id(request), body.ids, actor(request))})


@router.get(
    "/alerts/deliveries/{delivery_id}",
    auth=_read,
    response={200: DeliveryDetail},
    operation_id="getDelivery",
    summary="Look at a message",
)
def get_delivery(request: HttpRequest, delivery_id: str) -> HttpResponse:
    """Return a message with its attempts; what receivers answered is for keys with the scope admin."""
    return _delivery(request, existing_name(delivery_id))


def _delivery(request: HttpRequest, public_id: str) -> HttpResponse:
    principal = _principal(request)
    row = selector.get_delivery(principal.project_id, public_id)
    if row is None:
        raise NotFound("There is no such message in this project.")
    is_admin = Scope.ADMIN in principal.scopes
    tries = [
        {
            "number": attempt.number,
            "at": _time(attempt.at),
            "duration_ms": attempt.duration_ms,
            "is_success": attempt.is_success,
            "status": attempt.status,
            "problem": attempt.problem,
            "answer": attempt.answer if is_admin else None,
        }
        for attempt in row.attempts.all()
    ]
    payload = orjson.loads(row.payload) if row.payload else None
    return answer({**delivery_document(row), "tries": tries, "payload": payload})
