"""Reads for alerts: destinations with their health, routes, silences, notifications with their attempts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from django.db.models import Count, OuterRef, Prefetch, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from detection.models import (
    AlertDestination,
    AlertEvent,
    AlertRoute,
    AlertSilence,
    DeliveryAttempt,
    Notification,
    NotificationItem,
    NotificationState,
    OutboxState,
)
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.lists import NOTIFICATIONS
from detection.selectors.pages import Page, cut

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

DAY = timedelta(hours=24)
MAX_SHOWN_EVENTS = 50
MAX_ENDED_SILENCES = 50


ALL_NOTIFICATIONS = list_query(NOTIFICATIONS)
"""Every notification, the newest first."""


class DestinationHealth(TypedDict):
    """Counts that `list_destinations` adds: failed attempts in 24 hours; notifications that wait or failed for good."""

    failures_today: int
    waiting_count: int
    failed_count: int


class EventCount(TypedDict):
    """The number of events that notification lists add."""

    event_count: int


class SuppressedCount(TypedDict):
    """The number of suppressed events that `list_silences` adds."""

    suppressed_count: int


@dataclass(frozen=True, slots=True)
class AlertHealth:
    """The backlog of alert events and notifications in all projects, for metrics."""

    pending_events: int
    oldest_due_seconds: float
    by_state: tuple[tuple[str, int], ...]
    paused_destinations: int


def list_destinations(project_id: int) -> QuerySet[WithAnnotations[AlertDestination, DestinationHealth]]:
    """List destinations by name, with their health."""
    notifications = Notification.objects.filter(project_id=project_id, destination=OuterRef("pk"))
    failures = DeliveryAttempt.objects.filter(
        project_id=project_id,
        notification__destination=OuterRef("pk"),
        is_success=False,
        at__gte=timezone.now() - DAY,
    )
    # Subqueries, because joins would count each failure once per notification.
    return AlertDestination.objects.filter(project_id=project_id).annotate(
        waiting_count=_number(notifications.filter(state__in=("waiting", "sending")), "destination"),
        failed_count=_number(notifications.filter(state=NotificationState.FAILED), "destination"),
        failures_today=_number(failures, "notification__destination"),
    )


def _number(rows: QuerySet[Any], by: str) -> Coalesce:
    return Coalesce(Subquery(rows.order_by().values(by).annotate(number=Count("pk")).values("number")), 0)


def destination_state(row: AlertDestination, now: datetime) -> str:
    """Return ``disabled``, ``paused``, ``failing``, ``ok`` or ``new``."""
    if not row.is_enabled:
        return "disabled"
    if row.paused_until is not None and row.paused_until > now:
        return "paused"
    if row.failures_in_row:
        return "failing"
    return "ok" if row.last_success_at else "new"


def get_destination(
    project_id: int, public_id: str
) -> WithAnnotations[AlertDestination, DestinationHealth] | None:
    """Return a destination of the project with its health."""
    return list_destinations(project_id).filter(public_id=public_id).first()


def list_routes(project_id: int) -> QuerySet[AlertRoute]:
    """List routes in the order in which they are tried, with their destinations."""
    return AlertRoute.objects.filter(project_id=project_id).prefetch_related("destinations")


def get_route(project_id: int, public_id: str) -> AlertRoute | None:
    """Return a route of the project."""
    return list_routes(project_id).filter(public_id=public_id).first()


def list_silences(
    project_id: int, *, ended: bool = False
) -> list[WithAnnotations[AlertSilence, SuppressedCount]]:
    """List all active and planned silences with newest suppressed events as `shown_events`, or the last fifty ended.

    Mutes have their loops.
    """
    now = timezone.now()
    rows = AlertSilence.objects.filter(project_id=project_id).select_related("loop")
    rows = rows.annotate(suppressed_count=Count("suppressed_events"))
    rows = rows.filter(ends_at__lte=now) if ended else rows.filter(ends_at__gt=now)
    rows = rows.order_by("-ends_at", "-id")
    if not ended:
        events = AlertEvent.objects.select_related("incident__loop").defer(
            "incident__evidence", "incident__policy"
        )
        newest = events.order_by("-id")[:MAX_SHOWN_EVENTS]
        rows = rows.prefetch_related(Prefetch("suppressed_events", newest, to_attr="shown_events"))
    return list(rows[:MAX_ENDED_SILENCES] if ended else rows)


def list_notifications(
    project_id: int, query: ListQuery = ALL_NOTIFICATIONS, cursor: str = "", limit: int = 50
) -> Page[WithAnnotations[Notification, EventCount]]:
    """List notifications; `query` is of the list `NOTIFICATIONS`.

    Raises
    ------
    BadCursor
        If the cursor is not one of this list.
    """
    rows = Notification.objects.filter(query.condition(), project_id=project_id).select_related("destination")
    found = list(query.order.page(rows, cursor).annotate(event_count=Count("items"))[: limit + 1])
    return cut(found, limit, query.order.cursor)


def get_notification(project_id: int, public_id: str) -> WithAnnotations[Notification, EventCount] | None:
    """Return a notification with its attempts and events."""
    return (
        Notification.objects.select_related("destination")
        .prefetch_related(
            "attempts", Prefetch("items", NotificationItem.objects.select_related("event__incident__loop"))
        )
        .annotate(event_count=Count("items"))
        .filter(project_id=project_id, public_id=public_id)
        .first()
    )


def has_enabled_route(project_id: int) -> bool:
    """Return whether any alert can be sent."""
    return AlertRoute.objects.filter(project_id=project_id, is_enabled=True).exists()


def unrouted_today(project_id: int) -> int:
    """Return how many events of the last 24 hours, without those of the demo, matched no route or failed in routing."""
    events = AlertEvent.objects.filter(
        project_id=project_id,
        at__gte=timezone.now() - DAY,
        state__in=(OutboxState.UNROUTED, OutboxState.FAILED),
    )
    return events.exclude(facts__is_demo=True).count()


def health() -> AlertHealth:
    """Return the backlog of alert events and notifications in all projects."""
    now = timezone.now()
    due = Notification.objects.filter(state__in=("waiting", "sending"), due_at__lte=now)
    oldest = due.order_by("due_at").values_list("due_at", flat=True).first()
    states = Notification.objects.order_by("state").values_list("state").annotate(Count("pk"))
    return AlertHealth(
        AlertEvent.objects.filter(state=OutboxState.PENDING).count(),
        (now - oldest).total_seconds() if oldest else 0.0,
        tuple(states),
        AlertDestination.objects.filter(paused_until__gt=now).count(),
    )
