"""Schemas of alert destinations, routes, silences and notifications."""

from __future__ import annotations

from datetime import datetime, time
from typing import Annotated, Any, Literal

from django.utils import timezone
from ninja import Field, Schema
from pydantic import StringConstraints

from detection.api.schemas.common import (
    FilterQuerySchema,
    FindingKind,
    Name128,
    Name200,
    PageQuerySchema,
    ShortText,
    StrictSchema,
    Timestamp,
    with_fields_of,
)
from detection.models import AlertDestination
from detection.selectors.alerts import destination_state
from detection.selectors.record_rows import NotificationRow
from detection.selectors.row_fields import PUBLIC_ID, Shown
from detection.services.alerting.destinations import destination_version

SeverityName = Literal["info", "warning", "high", "critical"]
AlertEventTypeName = Literal[
    "opened",
    "returned",
    "escalated",
    "reopened",
    "ended",
    "assigned",
    "done",
    "later",
    "fine",
    "confirmed",
    "undone",
    "session.near_limit",
    "approval.requested",
    "approval.closed",
    "judge.disabled",
    "containment.created",
    "containment.lifted",
    "containment.ended",
    "report.weekly",
]
Name80 = Annotated[str, StringConstraints(min_length=1, max_length=80)]
Address = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
_ADDRESS = (
    "An https:// address for a webhook, an apprise address such as slack://… otherwise. Never shown again."
)


class DestinationRequestSchema(StrictSchema):
    """A new destination."""

    name: Name80 = Field(description="Name, unique within the project.")
    kind: Literal["webhook", "apprise"] = Field(
        description="A signed webhook, or a notification service through apprise."
    )
    address: Address = Field(description=_ADDRESS)


class DestinationUpdateSchema(StrictSchema):
    """Changes to a destination. Missing fields stay as they are."""

    name: Name80 | None = Field(None, description="Name, unique within the project.")
    address: Address | None = Field(None, description=_ADDRESS)
    is_enabled: bool | None = Field(None, description="Whether notifications are sent to it.")


def _health(row: AlertDestination) -> str:
    return destination_state(row, timezone.now())


class DestinationSchema(Schema):
    """A destination and its health."""

    id: Annotated[str, PUBLIC_ID] = Field(description="Id of the destination.")
    name: str = Field(description="Name.")
    kind: Literal["webhook", "apprise"] = Field(description="Kind.")
    address: Annotated[str, Shown(column="shown_address")] = Field(
        description="The part of the address that is not secret."
    )
    is_enabled: bool = Field(description="Whether notifications are sent to it.")
    state: Annotated[Literal["ok", "new", "failing", "paused", "disabled"], Shown(show=_health)] = Field(
        description="Health."
    )
    paused_until: datetime | None = Field(description="When the next attempt is allowed after failures.")
    last_success_at: datetime | None = Field(description="When a notification was last delivered.")
    last_failure_at: datetime | None = Field(description="When an attempt last failed.")
    last_problem: str = Field(description="Why the last attempt failed.")
    failures_today: int = Field(description="Failed attempts in the last 24 hours.")
    waiting: Annotated[int, Shown(column="waiting_count")] = Field(
        description="Notifications that wait to be sent."
    )
    failed: Annotated[int, Shown(column="failed_count")] = Field(
        description="Notifications that failed permanently."
    )
    signing_secrets: Annotated[int, Shown(show=lambda row: len(row.signing_secrets))] = Field(
        description="Number of active signing secrets."
    )
    version: Annotated[str, Shown(show=destination_version)] = Field(description="For `If-Match`, in quotes.")


class CreatedDestinationSchema(DestinationSchema):
    """A new destination with its signing secret."""

    signing_secret: str | None = Field(
        description="The signing secret, shown only here. Null for notification services."
    )


class SigningSecretSchema(Schema):
    """A new signing secret."""

    signing_secret: str = Field(description="The signing secret, shown only here.")


class MatchersSchema(StrictSchema):
    """Which alert events match. An empty list matches everything."""

    kinds: list[FindingKind] = Field([], description="Detectors.")
    severities: list[SeverityName] = Field([], description="Severities.")
    tools: list[Name128] = Field([], description="Globs of tool names.")
    agents: list[Name128] = Field([], description="Globs of agent names.")
    backends: list[Name128] = Field([], description="Globs of backends.")
    models: Annotated[list[Name200], Shown(column="model_names")] = Field(
        [], description="Globs of model names."
    )
    tags: list[Name128] = Field([], description="Globs of tags of the session, its agent or its key.")


class RouteRequestSchema(MatchersSchema):
    """A route."""

    name: Name80 = Field(description="Name, unique within the project.")
    destinations: list[ShortText] = Field(max_length=50, description="Ids of the destinations.")
    position: int = Field(0, ge=0, le=10_000, description="Order in which routes are tried, lowest first.")
    is_enabled: bool = Field(True, description="Whether the route is used.")
    continue_matching: bool = Field(
        False, description="Continue with the following routes after this one matches."
    )
    includes_demo: bool = Field(False, description="Whether alert events of demo sessions match.")
    event_types: list[AlertEventTypeName] = Field(
        ["opened", "escalated", "ended", "approval.requested"],
        description="Types of alert events that match. An empty list matches every type.",
    )
    group_by: list[Literal["session", "loop", "kind", "tool", "agent", "model"]] = Field(
        ["session", "loop"],
        description="Alert events with equal values in these fields share a notification.",
    )
    group_wait_seconds: int = Field(
        10,
        ge=0,
        le=3600,
        description="Group wait: how long a new group waits for more alert events, in seconds.",
    )
    quiet_from: time | None = Field(None, description="Start of the quiet hours, local time.")
    quiet_until: time | None = Field(None, description="End of the quiet hours, local time.")
    quiet_zone: ShortText = Field("UTC", description="Time zone of the quiet hours, as in Europe/Berlin.")
    quiet_delays_critical: bool = Field(
        False, description="Whether quiet hours delay critical notifications, too."
    )
    repeat_interval_hours: int = Field(
        0,
        ge=0,
        le=720,
        description="Repeat interval in hours while an incident is open and nobody owns its loop. 0 for never.",
    )


class RouteSchema(RouteRequestSchema):
    """A stored route."""

    id: str = Field(description="Id of the route.")
    version: str = Field(description="For `If-Match`, in quotes.")


class RoutePreviewRequestSchema(RouteRequestSchema):
    """A route that is not stored yet."""

    name: Annotated[str, StringConstraints(max_length=80)] = Field("", description="Not used.")
    replaces: ShortText = Field("", description="Id of the route that this one would replace.")


class PreviewedNotificationSchema(Schema):
    """A notification that a route would have sent."""

    sent_at: datetime = Field(description="When the notification would have been due.")
    title: str = Field(description="Title of the notification.")
    alerts: Annotated[int, Shown(show=lambda row: len(row.events))] = Field(
        description="Number of alert events in it."
    )
    destination: Annotated[str, Shown(column="destination__public_id")] = Field(
        description="Id of the destination."
    )


class RoutePreviewSchema(Schema):
    """What a route would have sent in the last 24 hours."""

    notifications: int = Field(description="Number of notifications.")
    alerts: int = Field(description="Number of alert events in them.")
    silenced: int = Field(description="Matching alert events that a silence suppressed.")
    taken: int = Field(description="Matching alert events that earlier routes take.")
    is_cut: bool = Field(
        description="Whether only the latest 2,000 alert events of the project were counted."
    )
    items: list[PreviewedNotificationSchema] = Field(description="The latest 50 notifications, newest first.")


class SilenceRequestSchema(MatchersSchema):
    """A silence."""

    reason: Annotated[str, StringConstraints(min_length=1, max_length=300)] = Field(
        description="Why alerts are silenced."
    )
    ends_at: Timestamp = Field(description="End, at most 90 days ahead.")
    starts_at: Timestamp | None = Field(None, description="Start. Now by default.")


class SilenceSchema(SilenceRequestSchema):
    """A stored silence."""

    id: Annotated[str, PUBLIC_ID] = Field(description="Id of the silence.")
    loop: Annotated[str | None, Shown(column="loop__public_id")] = Field(
        description="Id of the loop that is put off, whose alerts alone are silenced. Null for other silences."
    )
    created_by: str = Field(description="Who created it.")
    suppressed_count: Annotated[int, Shown(show=lambda row: getattr(row, "suppressed_count", 0))] = Field(
        description="Number of alert events that the silence suppressed."
    )


class SilenceQuerySchema(Schema):
    """Filters of the silence list."""

    ended: bool = Field(False, description="List ended silences instead of active and planned ones.")


class NotificationQuerySchema(PageQuerySchema, FilterQuerySchema):
    """Filters of the notification list."""

    state: Literal["", "waiting", "sending", "delivered", "failed"] = Field("", description="State.")
    destination: ShortText = Field("", description="Id of a destination.")
    incident: ShortText = Field("", description="Id of an incident.")


class DeliveryAttemptSchema(Schema):
    """One attempt to send a notification."""

    number: int = Field(description="Number of the attempt, from 1.")
    at: datetime = Field(description="When it started.")
    duration_ms: int = Field(description="Duration in milliseconds.")
    is_success: bool = Field(description="Whether the receiver accepted it.")
    status: int | None = Field(description="HTTP status of the response, if there was one.")
    problem: str = Field(description="Why it failed.")
    response: str | None = Field(
        description="First 4 KB of the response. Only for keys with the `admin` scope."
    )


@with_fields_of(NotificationRow)
class NotificationSchema(Schema):
    """A notification."""


class NotificationDetailSchema(NotificationSchema):
    """A notification with its attempts and payload."""

    attempts: list[DeliveryAttemptSchema] = Field(description="The attempts, oldest first.")
    payload: Any | None = Field(description="The payload. Null before the first attempt.")


class ResendRequestSchema(StrictSchema):
    """Which notifications to send again."""

    ids: list[ShortText] | None = Field(
        None, min_length=1, max_length=500, description="Ids of notifications. By default, all that failed."
    )


class ResendResultSchema(Schema):
    """How many notifications are sent again."""

    count: int = Field(description="Number of notifications.")
