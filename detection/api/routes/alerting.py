"""Routes of alert destinations, routes, silences and notifications."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ
from detection.api.pages import page_response, query_of
from detection.api.query_parameters import check_parameters, existing, existing_name, target
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import empty_response, json_response, list_response
from detection.api.schemas.alerts import (
    CreatedDestinationSchema,
    DeliveryAttemptSchema,
    DestinationRequestSchema,
    DestinationSchema,
    DestinationUpdateSchema,
    MatchersSchema,
    NotificationDetailSchema,
    NotificationQuerySchema,
    NotificationSchema,
    PreviewedNotificationSchema,
    ResendRequestSchema,
    ResendResultSchema,
    RoutePreviewRequestSchema,
    RoutePreviewSchema,
    RouteRequestSchema,
    RouteSchema,
    SigningSecretSchema,
    SilenceQuerySchema,
    SilenceRequestSchema,
    SilenceSchema,
)
from detection.api.schemas.common import PageSchema
from detection.api.versions import CONDITIONAL, expected_version, with_version
from detection.models import AlertRoute, KeyScope
from detection.selectors import alerts as selector
from detection.selectors.lists import NOTIFICATIONS
from detection.selectors.record_rows import NotificationRow
from detection.selectors.row_fields import document_of
from detection.services.alerting import alert_routes, destinations, notifications, silences
from detection.services.alerting.route_preview import preview_route

router = Router(tags=["alerts"])


def _destination(request: ApiRequest, public_id: str) -> dict[str, Any]:
    row = selector.get_destination(request.principal.project_id, public_id)
    return document_of(existing(row), DestinationSchema)


def _route(row: AlertRoute) -> dict[str, Any]:
    document = alert_routes.route_as_dict(row)
    document["models"] = document.pop("model_names")
    return {"id": row.public_id, **document, "version": alert_routes.route_version(row)}


def _with_version(document: dict[str, Any], status: int = 200) -> HttpResponse:
    return with_version(json_response(document, status), document["version"])


def _values(body: MatchersSchema, *left_out: str) -> dict[str, Any]:
    values = body.dict(exclude={*left_out})
    values["model_names"] = values.pop("models")
    return values


@router.get(
    "/alerts/destinations",
    auth=READ,
    response={200: PageSchema[DestinationSchema]},
    summary="List destinations",
)
def list_destinations(request: ApiRequest) -> HttpResponse:
    """List the destinations of alerts with their health."""
    rows = selector.list_destinations(request.principal.project_id)
    return list_response(document_of(row, DestinationSchema) for row in rows)


@router.post(
    "/alerts/destinations",
    auth=ADMIN_WITH_BODY,
    response={201: CreatedDestinationSchema},
    summary="Create a destination",
)
def create_destination(request: ApiRequest, body: Body[DestinationRequestSchema]) -> HttpResponse:
    """Create a destination.

    Its address is checked now and with every notification. Only this response contains the signing secret.
    """
    row, secret = destinations.create_destination(
        request.principal.project_id, actor_of(request), **body.dict()
    )
    document = _destination(request, row.public_id)
    return _with_version({**document, "signing_secret": secret or None}, 201)


@router.patch(
    "/alerts/destinations/{destination_id}",
    auth=ADMIN_WITH_BODY,
    response={200: DestinationSchema},
    summary="Update a destination",
    openapi_extra=CONDITIONAL,
)
def update_destination(
    request: ApiRequest, destination_id: str, body: Body[DestinationUpdateSchema]
) -> HttpResponse:
    """Rename, readdress, enable or disable a destination. Notifications to a disabled destination wait."""
    version = expected_version(request)
    destinations.update_destination(
        *target(request, destination_id), version=version, **body.dict(exclude_unset=True)
    )
    return _with_version(_destination(request, destination_id))


@router.delete(
    "/alerts/destinations/{destination_id}",
    auth=ADMIN,
    response={204: None},
    summary="Delete a destination",
    openapi_extra=CONDITIONAL,
)
def delete_destination(request: ApiRequest, destination_id: str) -> HttpResponse:
    """Delete a destination and its notifications."""
    destinations.delete_destination(*target(request, destination_id), version=expected_version(request))
    return empty_response()


@router.post(
    "/alerts/destinations/{destination_id}/test",
    auth=ADMIN,
    response={200: NotificationDetailSchema},
    summary="Send a test notification",
)
def test_destination(request: ApiRequest, destination_id: str) -> HttpResponse:
    """Send a test notification and wait up to a few seconds for the outcome."""
    message = notifications.send_test(*target(request, destination_id))
    return _notification(request, message.public_id)


@router.post(
    "/alerts/destinations/{destination_id}/secrets",
    auth=ADMIN,
    response={201: SigningSecretSchema},
    summary="Add a signing secret",
)
def add_signing_secret(request: ApiRequest, destination_id: str) -> HttpResponse:
    """Add a signing secret. Notifications carry a signature per active secret, at most three; the oldest is removed."""
    secret = destinations.add_signing_secret(*target(request, destination_id))
    return json_response({"signing_secret": secret}, 201)


@router.delete(
    "/alerts/destinations/{destination_id}/secrets",
    auth=ADMIN,
    response={204: None},
    summary="Remove old signing secrets",
    openapi_extra=CONDITIONAL,
)
def remove_old_signing_secrets(request: ApiRequest, destination_id: str) -> HttpResponse:
    """Remove every signing secret except the newest."""
    destinations.remove_old_secrets(*target(request, destination_id), version=expected_version(request))
    return empty_response()


@router.get(
    "/alerts/routes",
    auth=READ,
    response={200: PageSchema[RouteSchema]},
    summary="List routes",
)
def list_routes(request: ApiRequest) -> HttpResponse:
    """List routes in the order in which they are tried."""
    rows = selector.list_routes(request.principal.project_id)
    return list_response(_route(row) for row in rows)


@router.post(
    "/alerts/routes",
    auth=ADMIN_WITH_BODY,
    response={201: RouteSchema},
    summary="Create a route",
)
def create_route(request: ApiRequest, body: Body[RouteRequestSchema]) -> HttpResponse:
    """Create a route."""
    row = alert_routes.save_route(request.principal.project_id, actor_of(request), **_values(body))
    return _with_version(_route(row), 201)


@router.post(
    "/alerts/routes/preview",
    auth=ADMIN_WITH_BODY,
    response={200: RoutePreviewSchema},
    summary="Get what a route would have sent",
)
def preview(request: ApiRequest, body: Body[RoutePreviewRequestSchema]) -> HttpResponse:
    """Route and group the alert events of the last 24 hours as this route would have. Stores and sends nothing."""
    values = _values(body, "replaces")
    found = preview_route(request.principal.project_id, public_id=body.replaces or None, **values)
    return json_response(
        {
            "notifications": found.notifications,
            "alerts": found.alerts,
            "silenced": found.silenced,
            "taken": found.taken,
            "is_cut": found.is_cut,
            "items": [document_of(one, PreviewedNotificationSchema) for one in found.listed],
        }
    )


@router.put(
    "/alerts/routes/{route_id}",
    auth=ADMIN_WITH_BODY,
    response={200: RouteSchema},
    summary="Update a route",
    openapi_extra=CONDITIONAL,
)
def update_route(request: ApiRequest, route_id: str, body: Body[RouteRequestSchema]) -> HttpResponse:
    """Replace all fields of a route. Missing fields get their defaults."""
    name = existing_name(route_id)
    row = alert_routes.save_route(
        request.principal.project_id,
        actor_of(request),
        public_id=name,
        version=expected_version(request),
        **_values(body),
    )
    return _with_version(_route(row))


@router.delete(
    "/alerts/routes/{route_id}",
    auth=ADMIN,
    response={204: None},
    summary="Delete a route",
    openapi_extra=CONDITIONAL,
)
def delete_route(request: ApiRequest, route_id: str) -> HttpResponse:
    """Delete a route. Notifications that it created are still sent."""
    alert_routes.delete_route(*target(request, route_id), version=expected_version(request))
    return empty_response()


@router.get(
    "/alerts/silences",
    auth=READ,
    response={200: PageSchema[SilenceSchema]},
    summary="List silences",
)
def list_silences(request: ApiRequest, query: Query[SilenceQuerySchema]) -> HttpResponse:
    """List active and planned silences or, with `ended=true`, those that ended most recently."""
    check_parameters(request, SilenceQuerySchema)
    rows = selector.list_silences(request.principal.project_id, ended=query.ended)
    return list_response(document_of(row, SilenceSchema) for row in rows)


@router.post(
    "/alerts/silences",
    auth=ADMIN_WITH_BODY,
    response={201: SilenceSchema},
    summary="Create a silence",
)
def create_silence(request: ApiRequest, body: Body[SilenceRequestSchema]) -> HttpResponse:
    """Silence matching alerts until a given time."""
    row = silences.create_silence(request.principal.project_id, actor_of(request), **_values(body))
    return json_response(document_of(row, SilenceSchema), 201)


@router.delete(
    "/alerts/silences/{silence_id}",
    auth=ADMIN,
    response={204: None},
    summary="End a silence",
)
def end_silence(request: ApiRequest, silence_id: str) -> HttpResponse:
    """End a silence immediately."""
    silences.end_silence(*target(request, silence_id))
    return empty_response()


@router.get(
    "/alerts/notifications",
    auth=READ,
    response={200: PageSchema[NotificationSchema]},
    summary="List notifications",
)
def list_notifications(request: ApiRequest, query: Query[NotificationQuerySchema]) -> HttpResponse:
    """List notifications, newest first."""
    names = {"state": "is", "destination": "destination_id", "incident": "incident"}
    filters = query_of(request, NOTIFICATIONS, query, names)
    document = partial(document_of, kind=NotificationRow)
    return page_response(request, query, filters, selector.list_notifications, document)


@router.post(
    "/alerts/notifications/resend",
    auth=ADMIN_WITH_BODY,
    response={200: ResendResultSchema},
    summary="Resend notifications",
)
def resend_notifications(request: ApiRequest, body: Body[ResendRequestSchema]) -> HttpResponse:
    """Send notifications again with their original ids and payloads."""
    return json_response(
        {"count": notifications.resend(request.principal.project_id, body.ids, actor_of(request))}
    )


@router.get(
    "/alerts/notifications/{notification_id}",
    auth=READ,
    response={200: NotificationDetailSchema},
    summary="Get a notification",
)
def get_notification(request: ApiRequest, notification_id: str) -> HttpResponse:
    """Return a notification with its attempts. Responses of receivers are shown only to keys with the `admin` scope."""
    return _notification(request, existing_name(notification_id))


def _notification(request: ApiRequest, public_id: str) -> HttpResponse:
    row = existing(selector.get_notification(request.principal.project_id, public_id))
    hidden = {} if KeyScope.ADMIN in request.principal.scopes else {"response": None}
    attempts = [document_of(attempt, DeliveryAttemptSchema) | hidden for attempt in row.attempts.all()]
    payload = orjson.loads(row.payload) if row.payload else None
    return json_response({**document_of(row, NotificationRow), "attempts": attempts, "payload": payload})
