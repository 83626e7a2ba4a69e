"""Reads for alerts: destinations with how they fare, routes, silences with what they hide, messages with attempts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, OuterRef, Prefetch, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from detection.models import (
    AlertAttempt,
    AlertDelivery,
    AlertDeliveryItem,
    AlertDestination,
    AlertRoute,
    AlertSilence,
    AlertTransition,
    DeliveryState,
    OutboxState,
)
from detection.selectors.pages import BadCursor, Page

DAY = timedelta(hours=24)
MAX_SHOWN_HIDDEN = 50


@dataclass(frozen=True, slots=True)
class DeliveryFilters:
    """Filters of the delivery log; empty ones let everything through."""

    state: str = ""
    destination: str = ""
    incident: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """What the sending has before it, over all projects: for metrics."""

    pending_transitions: int
    oldest_due_seconds: float
    by_state: tuple[tuple[str, int], ...]
    paused_destinations: int


def destinations_of(project_id: int) -> QuerySet[AlertDestination]:
    """List destinations with their failures in 24 hours, what waits for them, and how many failed for good."""
    messages = AlertDelivery.objects.filter(destination=OuterRef("pk"))
    failures = AlertAttempt.objects.filter(
        delivery__destination=OuterRef("pk"), is_success=False, at__gte=timezone.now() - DAY
    )
    # Each counted for itself: joined, the failures would be counted anew for every message.
    return AlertDestination.objects.filter(project_id=project_id).annotate(
        waiting_count=_number(messages.filter(state__in=("waiting", "sending")), "destination"),
        failed_count=_number(messages.filter(state=DeliveryState.FAILED), "destination"),
        failures_today=_number(failures, "delivery__destination"),
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


def get_destination(project_id: int, public_id: str) -> AlertDestination | None:
    """Return one destination of the project."""
    return destinations_of(project_id).filter(public_id=public_id).first()


def routes_of(project_id: int) -> QuerySet[AlertRoute]:
    """List routes in the order in which they are tried, with their destinations."""
    return AlertRoute.objects.filter(project_id=project_id).prefetch_related("destinations")


def get_route(project_id: int, public_id: str) -> AlertRoute | None:
    """Return one route of the project."""
    return routes_of(project_id).filter(public_id=public_id).first()


def silences_of(project_id: int, *, over: bool = False) -> list[AlertSilence]:
    """List silences that run or are planned, with the newest that each holds back, or (`over`) the last fifty that ended."""
    now = timezone.now()
    rows = AlertSilence.objects.filter(project_id=project_id).annotate(hidden_count=Count("hidden"))
    rows = rows.filter(ends_at__lte=now) if over else rows.filter(ends_at__gt=now)
    rows = rows.order_by("-ends_at", "-id")
    if not over:
        hidden = AlertTransition.objects.select_related("incident").defer(
            "incident__evidence", "incident__policy"
        )
        newest = hidden.order_by("-id")[:MAX_SHOWN_HIDDEN]
        rows = rows.prefetch_related(Prefetch("hidden", newest, to_attr="held_back"))
    return list(rows[:50])


def list_deliveries(
    project_id: int, filters: DeliveryFilters, cursor: str = "", limit: int = 50
) -> Page[AlertDelivery]:
    """List messages, the newest first.

    Raises
    ------
    BadCursor
        When the cursor is none of this list.
    """
    rows = AlertDelivery.objects.filter(project_id=project_id).select_related("destination")
    if filters.state:
        rows = rows.filter(state=filters.state)
    if filters.destination:
        rows = rows.filter(destination__public_id=filters.destination)
    if filters.incident:
        of_incident = AlertDeliveryItem.objects.filter(
            transition__incident__public_id=filters.incident, transition__project_id=project_id
        )
        rows = rows.filter(pk__in=of_incident.values("delivery"))
    if cursor:
        if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
            raise BadCursor("The cursor was not given out by this list.")
        rows = rows.filter(pk__lt=int(cursor))
    found = list(rows.order_by("-id").annotate(transition_count=Count("items"))[: limit + 1])
    return Page(tuple(found[:limit]), str(found[limit - 1].pk) if len(found) > limit else None)


def get_delivery(project_id: int, public_id: str) -> AlertDelivery | None:
    """Return one message with its attempts and what it tells of."""
    return (
        AlertDelivery.objects.select_related("destination")
        .prefetch_related(
            "attempts", Prefetch("items", AlertDeliveryItem.objects.select_related("transition__incident"))
        )
        .annotate(transition_count=Count("items"))
        .filter(project_id=project_id, public_id=public_id)
        .first()
    )


def unrouted_today(project_id: int) -> int:
    """Count the transitions of the last 24 hours that no route wanted or whose routing failed."""
    return AlertTransition.objects.filter(
        project_id=project_id,
        at__gte=timezone.now() - DAY,
        state__in=(OutboxState.UNROUTED, OutboxState.FAILED),
    ).count()


def health() -> Health:
    """Return what waits to be sent, over all projects."""
    now = timezone.now()
    due = AlertDelivery.objects.filter(state__in=("waiting", "sending"), due_at__lte=now)
    oldest = due.order_by("due_at").values_list("due_at", flat=True).first()
    states = AlertDelivery.objects.order_by("state").values_list("state").annotate(Count("pk"))
    return Health(
        AlertTransition.objects.filter(state=OutboxState.PENDING).count(),
        (now - oldest).total_seconds() if oldest else 0.0,
        tuple(states),
        AlertDestination.objects.filter(paused_until__gt=now).count(),
    )
