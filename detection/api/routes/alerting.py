"""Alerts: destinations, routes, silences, and the log of what was sent."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Body, Query, Router

from detection.api.alert_responses import (
    delivery_detail_document,
    delivery_document,
    destination_document,
    route_document,
    silence_document,
)
from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ, actor, principal_of, project_of
from detection.api.query_parameters import existing, existing_name, refuse_unknown, target
from detection.api.responses import answer, answer_list, answer_nothing
from detection.api.schemas import Listed
from detection.api.schemas.alerts import (
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
from detection.models import Scope
from detection.selectors import alerts as selector
from detection.selectors.alerts import DeliveryFilters
from detection.services.alerting import alert_routes, destinations

router = Router(tags=["alerts"])


def _destination(request: HttpRequest, public_id: str) -> dict[str, Any]:
    row = selector.get_destination(project_of(request), public_id)
    return destination_document(existing(row, "destination"))


def _values(body: Matchers, *left_out: str) -> dict[str, Any]:
    values = body.dict(exclude={*left_out})
    values["model_names"] = values.pop("models")
    return values


@router.get(
    "/alerts/destinations",
    auth=READ,
    response={200: Listed[DestinationOut]},
    operation_id="listDestinations",
    summary="List destinations",
)
def list_destinations(request: HttpRequest) -> HttpResponse:
    """List where messages can go and how each place fares."""
    rows = selector.destinations_of(project_of(request))
    return answer_list(destination_document(row) for row in rows)


@router.post(
    "/alerts/destinations",
    auth=ADMIN_WITH_BODY,
    response={201: NewDestination},
    operation_id="createDestination",
    summary="Make a destination",
)
def create_destination(request: HttpRequest, body: Body[DestinationIn]) -> HttpResponse:
    """Make a destination; its address is checked now and with every message. The signing secret is in this answer only."""
    row, secret = destinations.create_destination(project_of(request), actor(request), **body.dict())
    return answer({**_destination(request, row.public_id), "signing_secret": secret or None}, 201)


@router.patch(
    "/alerts/destinations/{destination_id}",
    auth=ADMIN_WITH_BODY,
    response={200: DestinationOut},
    operation_id="changeDestination",
    summary="Change a destination",
)
def change_destination(
    request: HttpRequest, destination_id: str, body: Body[DestinationChange]
) -> HttpResponse:
    """Rename, readdress, enable or disable a destination; what waits for a disabled one is kept."""
    destinations.change_destination(*target(request, destination_id), **body.dict(exclude_unset=True))
    return answer(_destination(request, destination_id))


@router.delete(
    "/alerts/destinations/{destination_id}",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteDestination",
    summary="Remove a destination",
)
def delete_destination(request: HttpRequest, destination_id: str) -> HttpResponse:
    """Remove a destination with its messages."""
    destinations.delete_destination(*target(request, destination_id))
    return answer_nothing()


@router.post(
    "/alerts/destinations/{destination_id}/test",
    auth=ADMIN,
    response={200: DeliveryDetail},
    operation_id="testDestination",
    summary="Send a test message",
)
def send_test(request: HttpRequest, destination_id: str) -> HttpResponse:
    """Send a test message and wait, a few seconds at most, for what comes of it."""
    message = destinations.send_test(*target(request, destination_id))
    return _delivery(request, message.public_id)


@router.post(
    "/alerts/destinations/{destination_id}/secrets",
    auth=ADMIN,
    response={201: SecretOut},
    operation_id="addSigningSecret",
    summary="Add a signing secret",
)
def add_secret(request: HttpRequest, destination_id: str) -> HttpResponse:
    """Add a secret: messages are signed with all of them, at most three, until the older ones are retired."""
    secret = destinations.add_signing_secret(*target(request, destination_id))
    return answer({"signing_secret": secret}, 201)


@router.delete(
    "/alerts/destinations/{destination_id}/secrets",
    auth=ADMIN,
    response={204: None},
    operation_id="retireSigningSecrets",
    summary="Retire the older signing secrets",
)
def retire_secrets(request: HttpRequest, destination_id: str) -> HttpResponse:
    """Keep the newest secret only."""
    destinations.retire_signing_secrets(*target(request, destination_id))
    return answer_nothing()


@router.get(
    "/alerts/routes",
    auth=READ,
    response={200: Listed[RouteOut]},
    operation_id="listRoutes",
    summary="List routes",
)
def list_routes(request: HttpRequest) -> HttpResponse:
    """List routes in the order in which they are tried."""
    rows = selector.routes_of(project_of(request))
    return answer_list(route_document(row) for row in rows)


@router.post(
    "/alerts/routes",
    auth=ADMIN_WITH_BODY,
    response={201: RouteOut},
    operation_id="createRoute",
    summary="Make a route",
)
def create_route(request: HttpRequest, body: Body[RouteIn]) -> HttpResponse:
    """Make a route."""
    row = alert_routes.save_route(project_of(request), actor(request), **_values(body))
    return answer(route_document(row), 201)


@router.put(
    "/alerts/routes/{route_id}",
    auth=ADMIN_WITH_BODY,
    response={200: RouteOut},
    operation_id="replaceRoute",
    summary="Replace a route",
)
def replace_route(request: HttpRequest, route_id: str, body: Body[RouteIn]) -> HttpResponse:
    """Replace a route whole."""
    name = existing_name(route_id)
    row = alert_routes.save_route(project_of(request), actor(request), public_id=name, **_values(body))
    return answer(route_document(row))


@router.delete(
    "/alerts/routes/{route_id}",
    auth=ADMIN,
    response={204: None},
    operation_id="deleteRoute",
    summary="Remove a route",
)
def delete_route(request: HttpRequest, route_id: str) -> HttpResponse:
    """Remove a route; messages that it has made are still sent."""
    alert_routes.delete_route(*target(request, route_id))
    return answer_nothing()


@router.get(
    "/alerts/silences",
    auth=READ,
    response={200: Listed[SilenceOut]},
    operation_id="listSilences",
    summary="List silences",
)
def list_silences(request: HttpRequest, query: Query[SilenceQuery]) -> HttpResponse:
    """List silences that run or are planned, or with ``over=true`` those that ended last."""
    refuse_unknown(request, SilenceQuery)
    rows = selector.silences_of(project_of(request), over=query.over)
    return answer_list(silence_document(row) for row in rows)


@router.post(
    "/alerts/silences",
    auth=ADMIN_WITH_BODY,
    response={201: SilenceOut},
    operation_id="createSilence",
    summary="Begin a silence",
)
def create_silence(request: HttpRequest, body: Body[SilenceIn]) -> HttpResponse:
    """Hold messages back until a time."""
    values = _values(body, "loop")
    row = alert_routes.create_silence(project_of(request), actor(request), loop_id=body.loop, **values)
    return answer(silence_document(row), 201)


@router.delete(
    "/alerts/silences/{silence_id}",
    auth=ADMIN,
    response={204: None},
    operation_id="endSilence",
    summary="End a silence",
)
def end_silence(request: HttpRequest, silence_id: str) -> HttpResponse:
    """End a silence now."""
    alert_routes.end_silence(*target(request, silence_id))
    return answer_nothing()


@router.get(
    "/alerts/deliveries",
    auth=READ,
    response={200: Listed[DeliveryOut]},
    operation_id="listDeliveries",
    summary="List messages",
)
def list_deliveries(request: HttpRequest, query: Query[DeliveryQuery]) -> HttpResponse:
    """List messages, the newest first."""
    refuse_unknown(request, DeliveryQuery)
    filters = DeliveryFilters(**query.dict(exclude={"cursor", "limit"}))
    page = selector.list_deliveries(project_of(request), filters, query.cursor, query.limit)
    return answer_list((delivery_document(row) for row in page.items), page.next_cursor)


@router.post(
    "/alerts/deliveries/resend",
    auth=ADMIN_WITH_BODY,
    response={200: ResendOut},
    operation_id="resendDeliveries",
    summary="Send messages again",
)
def resend(request: HttpRequest, body: Body[ResendIn]) -> HttpResponse:
    """Send messages again under the ids they had; without ids every failed one."""
    return answer({"count": destinations.resend(project_of(request), body.ids, actor(request))})


@router.get(
    "/alerts/deliveries/{delivery_id}",
    auth=READ,
    response={200: DeliveryDetail},
    operation_id="getDelivery",
    summary="Look at a message",
)
def get_delivery(request: HttpRequest, delivery_id: str) -> HttpResponse:
    """Return a message with its attempts; what receivers answered is for keys with the scope admin."""
    return _delivery(request, existing_name(delivery_id))


def _delivery(request: HttpRequest, public_id: str) -> HttpResponse:
    row = existing(selector.get_delivery(project_of(request), public_id), "message")
    shows_answers = Scope.ADMIN in principal_of(request).scopes
    return answer(delivery_detail_document(row, shows_answers=shows_answers))
