"""What a route would have sent in the last day: the stored alert events, routed and grouped by `routing` in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from detection.models import AlertDestination, AlertEvent, AlertEventType, AlertRoute, OutboxState
from detection.services.alerting import alert_routes, postponing, rendering, routing
from detection.services.alerting.routing import EnabledRoute

WINDOW: Final = timedelta(hours=24)
MAX_EVENTS: Final = 2_000
"""Maximum number of events of the window that are considered, latest first."""
MAX_LISTED: Final = 50


@dataclass(slots=True)
class PreviewedNotification:
    """A notification that would have been sent.

    Attributes
    ----------
    sent_at
        When the notification would have been due.
    """

    destination: AlertDestination
    is_of_route: bool
    created_at: datetime
    sent_at: datetime
    events: list[AlertEvent] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The title that receivers would have seen."""
        return rendering.title_of(self.events)

    @property
    def is_due(self) -> bool:
        """Whether its group still waits for more alerts."""
        return self.sent_at > timezone.now()


@dataclass(frozen=True, slots=True)
class RoutePreview:
    """What a route would have sent.

    Attributes
    ----------
    notifications
        How many.
    alerts
        Alert events in them.
    silenced
        Alert events that match the route, and that a silence suppressed.
    taken
        Alert events that match the route, and that earlier routes take: they end the search, or have its
        destinations.
    is_cut
        Whether the window has more than `MAX_EVENTS` events, of which only the latest count.
    listed
        The latest `MAX_LISTED` notifications, the latest first.
    """

    notifications: int
    alerts: int
    silenced: int
    taken: int
    is_cut: bool
    listed: tuple[PreviewedNotification, ...]


def preview_route(
    project_id: int, *, destinations: Sequence[str], public_id: str | None = None, **values: Any
) -> RoutePreview:
    """Return what a route would have sent in the last 24 hours; stores nothing.

    Parameters
    ----------
    destinations, **values
        As `alert_routes.save_route` takes them. The route is taken as enabled.
    public_id
        The route that it would replace; None for a new one.

    Raises
    ------
    Invalid
        For the field at fault.
    """
    row = AlertRoute(project_id=project_id)
    targets = alert_routes.checked_destinations(project_id, destinations)
    values.pop("name", None)
    alert_routes.set_values(row, values)
    candidate = EnabledRoute(row, tuple(sorted(targets, key=lambda one: one.pk)))
    since = timezone.now() - WINDOW
    found = AlertEvent.objects.filter(project_id=project_id, at__gte=since).order_by("-id")
    if not row.includes_demo:  # they match no condition of the route, and are many
        found = found.exclude(facts__is_demo=True)
    events = list(
        found.exclude(type=AlertEventType.STILL_OPEN).select_related("incident__loop")[: MAX_EVENTS + 1]
    )
    simulation = _Simulation(project_id, _with_candidate(project_id, candidate, public_id), candidate)
    for event in reversed(events[:MAX_EVENTS]):
        simulation.add(event)
    mine = simulation.of_route()
    return RoutePreview(
        len(mine),
        sum(len(one.events) for one in mine),
        simulation.silenced,
        simulation.taken,
        len(events) > MAX_EVENTS,
        tuple(reversed(mine[-MAX_LISTED:])),
    )


def _with_candidate(project_id: int, candidate: EnabledRoute, public_id: str | None) -> list[EnabledRoute]:
    """Return the routes in use in their order, with the candidate at its place."""
    routes = [one for one in routing.enabled_routes(project_id) if one.route.public_id != public_id]
    place = sum(one.route.position <= candidate.route.position for one in routes)
    return [*routes[:place], candidate, *routes[place:]]


class _Simulation:
    """Groups events as `routing.add_to_notification` does, at the time of each event."""

    def __init__(self, project_id: int, routes: Sequence[EnabledRoute], candidate: EnabledRoute) -> None:
        self._routes, self._candidate = routes, candidate
        self._now = timezone.now()
        self._silences = routing.active_silences(project_id, self._now)
        self._lasting: set[int] = set()
        self._by_key: dict[tuple[int, str], list[PreviewedNotification]] = defaultdict(list)
        self._all: list[PreviewedNotification] = []
        self.silenced = self.taken = 0

    def of_route(self) -> list[PreviewedNotification]:
        """Return the notifications of the candidate in the order of their creation."""
        return [one for one in self._all if one.is_of_route]

    def add(self, event: AlertEvent) -> None:
        """Route one event; events come in their order."""
        is_match = routing.route_matches(self._candidate.route, event.type, event.facts)
        if self._is_silenced(event):
            self.silenced += is_match
            return
        for enabled, destination in routing.deliveries(event.type, event.facts, self._routes):
            self._send(event, enabled, destination)
            is_match = is_match and enabled is not self._candidate
        self.taken += is_match

    def _is_silenced(self, event: AlertEvent) -> bool:
        """Return what routing has decided, which no route changes, or would decide now on an event that waits for it.

        At most one query per postponement that ends when its loop gets worse.
        """
        if event.state != OutboxState.PENDING:
            return event.state == OutboxState.SILENCED
        silence = routing.matching_silence(self._silences, event.facts)
        while silence is not None and silence.pk not in self._lasting:
            if postponing.is_worse(silence, self._now):
                self._silences.remove(silence)
                silence = routing.matching_silence(self._silences, event.facts)
            else:
                self._lasting.add(silence.pk)
        return silence is not None

    def _send(self, event: AlertEvent, enabled: EnabledRoute, destination: AlertDestination) -> None:
        route = enabled.route
        group = self._by_key[destination.pk, routing.group_key(route, event.facts)]
        notification = group[-1] if group else None
        if notification is not None and (
            notification.sent_at < event.at or len(notification.events) >= routing.MAX_GROUPED
        ):
            notification = None
        since = event.at - routing.FLAPPING_WINDOW
        due = routing.due_at(
            route,
            event,
            event.at,
            lambda: sum(one.created_at > since for one in group[-routing.FLAPPING_COUNT :]),
        )
        if notification is None:
            notification = PreviewedNotification(destination, enabled is self._candidate, event.at, due)
            self._all.append(notification)
            group.append(notification)
        elif due < notification.sent_at and routing.is_urgent(event):
            notification.sent_at = due
        notification.events.append(event)
