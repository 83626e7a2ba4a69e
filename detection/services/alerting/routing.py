"""Routes alert events into notifications: silences, matching, grouping, flapping and quiet hours.

Each event is routed once: into exactly one notification per destination, or into none, which is recorded.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

import structlog
from django.db import transaction
from django.utils import timezone

from detection.models import (
    AgentTags,
    AlertDestination,
    AlertEvent,
    AlertEventType,
    AlertRoute,
    AlertSilence,
    ApiKey,
    Notification,
    NotificationItem,
    NotificationState,
    OutboxState,
    Severity,
)
from detection.models.alert_facts import AlertFacts
from detection.services.alerting import postponing
from detection.sql.advisory_locks import AdvisoryLock, try_lock_until_commit

log = structlog.get_logger(__name__)

BATCH_EVENTS = 200
GROUP_FIELDS = ("session", "loop", "kind", "tool", "agent", "model")
FLAPPING_COUNT, FLAPPING_WINDOW, FLAPPING_WAIT = 5, timedelta(minutes=10), timedelta(minutes=10)
"""A group with five notifications within ten minutes is flapping; its further events wait for ten minutes."""
APPROVAL_WAIT_SHARE = 0.25
"""An approval request waits in its group for at most this share of the time until its deadline."""
MAX_GROUPED = 500


@dataclass(frozen=True, slots=True)
class EnabledRoute:
    """A route in use, with its destinations."""

    route: AlertRoute
    destinations: tuple[AlertDestination, ...]


def route_pending() -> int:
    """Route the events that wait in the outbox.

    Returns
    -------
    int
        How many events were routed. Only one process routes at a time; the others return 0 at once.
    """
    with transaction.atomic():
        if not acquire_routing_lock():
            return 0
        pending = AlertEvent.objects.filter(state=OutboxState.PENDING)
        oldest: dict[int, list[int]] = defaultdict(list)
        for project_id, pk in pending.order_by("id").values_list("project_id", "pk")[:BATCH_EVENTS]:
            oldest[project_id].append(pk)
        waiting: list[AlertEvent] = []
        for project_id, ids in oldest.items():
            rows = pending.filter(project_id=project_id, pk__in=ids).order_by("id")
            waiting += rows.select_for_update(of=("self",))
        routes: dict[int, list[EnabledRoute]] = {}
        tags: dict[int, ProjectTags] = {}
        for event in waiting:
            if event.project_id not in routes:
                routes[event.project_id] = enabled_routes(event.project_id)
                tags[event.project_id] = tags_of_project(event.project_id)
            try:
                with transaction.atomic():
                    event.facts["tags"] = tags[event.project_id].of(event.facts)
                    _route(event, routes[event.project_id])
            except Exception:
                # One event that cannot be routed must not delay the others; it stays visible as failed.
                log.exception("alert_routing_failed", event_id=event.pk)
                event.state = OutboxState.FAILED
            event.save(update_fields=["state", "silence", "facts"])
    return len(waiting)


def acquire_routing_lock() -> bool:
    """Acquire the routing lock until the end of the transaction; False if another process has it."""
    return try_lock_until_commit(AdvisoryLock.ALERT_ROUTING)


def enabled_routes(project_id: int) -> list[EnabledRoute]:
    """Return the enabled routes of a project in order."""
    routes = AlertRoute.objects.filter(project_id=project_id, is_enabled=True).prefetch_related(
        "destinations"
    )
    return [
        EnabledRoute(route, tuple(sorted(route.destinations.all(), key=lambda one: one.pk)))
        for route in routes
    ]


@dataclass(frozen=True, slots=True)
class ProjectTags:
    """The tags of the agents and keys of a project, by name and id."""

    agents: Mapping[str, Sequence[str]]
    keys: Mapping[str, Sequence[str]]

    def of(self, facts: AlertFacts) -> list[str]:
        """Return the tags of an event's session, its agent and its key, each once."""
        added = (*self.agents.get(facts["agent"], ()), *self.keys.get(facts.get("api_key", ""), ()))
        return [*dict.fromkeys((*facts.get("tags", ()), *added))]


def tags_of_project(project_id: int) -> ProjectTags:
    """Read the tags of all agents and keys of a project; two queries."""
    agents = AgentTags.objects.filter(project_id=project_id).values_list("agent", "tags")
    keys = ApiKey.objects.filter(project_id=project_id).exclude(tags=[]).values_list("public_id", "tags")
    return ProjectTags(dict(agents), dict(keys))


def _route(event: AlertEvent, routes: Sequence[EnabledRoute]) -> None:
    silence = _silence_of(event)
    while silence is not None and postponing.end_if_worse(silence):
        silence = _silence_of(event)
    if silence is not None:
        event.state, event.silence = OutboxState.SILENCED, silence
        return
    notified: set[int] = set()
    for enabled, destination in deliveries(event.type, event.facts, routes):
        notified.add(destination.pk)
        add_to_notification(event, enabled.route, destination)
    event.state = OutboxState.ROUTED if notified else OutboxState.UNROUTED


def _silence_of(event: AlertEvent) -> AlertSilence | None:
    active = active_silences(event.project_id, timezone.now())
    if event.type == AlertEventType.LATER:  # the silence that it is about does not hide it
        active = [silence for silence in active if silence.loop is None]
    return matching_silence(active, event.facts)


def deliveries(
    event_type: str, facts: AlertFacts, routes: Iterable[EnabledRoute]
) -> Iterator[tuple[EnabledRoute, AlertDestination]]:
    """Yield the destinations of an event with their routes: each once, and no route after the last match."""
    notified: set[int] = set()
    for enabled in routes:
        if not route_matches(enabled.route, event_type, facts):
            continue
        for destination in enabled.destinations:
            if destination.pk not in notified:
                notified.add(destination.pk)
                yield enabled, destination
        if not enabled.route.continue_matching:
            return


def matches(row: AlertRoute | AlertSilence, facts: AlertFacts) -> bool:
    """Return whether every list of the row matches; empty lists match, and text lists contain globs.

    A route is for a loop that one of its detectors found, a silence for one that only its detectors found, so that
    nothing is hidden that nobody asked to hide.
    """
    kinds = facts.get("kinds") or [facts["kind"]]
    is_found = all if isinstance(row, AlertSilence) else any

    def fits(patterns: list[str], value: str) -> bool:
        return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)

    return (
        (not row.kinds or is_found(kind in row.kinds for kind in kinds))
        and (not row.severities or facts["severity"] in row.severities)
        and fits(row.tools, facts["tool"])
        and fits(row.agents, facts["agent"])
        and fits(row.backends, facts["backend"])
        and fits(row.model_names, facts["model"])
        and (not row.tags or any(fits(row.tags, tag) for tag in facts.get("tags", ())))
    )


def route_matches(route: AlertRoute, event_type: str, facts: AlertFacts) -> bool:
    """Return whether a route matches an event, or one that is part of it.

    The report of a week is about no loop: it goes to the routes that name its type, and to no others.
    """
    if event_type == AlertEventType.WEEKLY_REPORT:
        return event_type in route.event_types
    types = (event_type, *facts.get("also", ()))
    return (
        (not route.event_types or any(one in route.event_types for one in types))
        and (route.includes_demo or not facts["is_demo"])
        and matches(route, facts)
    )


def active_silences(project_id: int, now: datetime) -> list[AlertSilence]:
    """Return the silences that are active at a time, the one that ends last first."""
    active = AlertSilence.objects.filter(project_id=project_id, starts_at__lte=now, ends_at__gt=now)
    return list(active.select_related("loop").order_by("-ends_at"))


def matching_silence(silences: Iterable[AlertSilence], facts: AlertFacts) -> AlertSilence | None:
    """Return the first silence that suppresses an event with these facts; none does a containment or a report."""
    if "containment" in facts or "report" in facts:
        return None
    for silence in silences:
        is_of_loop = silence.loop is None or silence.loop.public_id == facts.get("loop_id")
        if is_of_loop and matches(silence, facts):
            return silence
    return None


def group_key(route: AlertRoute, facts: AlertFacts) -> str:
    """Return the key of an event's group: equal values in the route's `group_by` fields share a notification."""
    named = {
        **facts,
        "loop": facts.get("loop_id") or facts["calls_digest"],
        "model": f"{facts['backend']}/{facts['model']}",
    }
    text = "\x00".join([str(route.pk), *(f"{field}={named[field]}" for field in sorted(route.group_by))])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def add_to_notification(event: AlertEvent, route: AlertRoute, destination: AlertDestination) -> None:
    """Add an event to the notification that its group is waiting for, or create one."""
    key, now = group_key(route, event.facts), timezone.now()
    group = Notification.objects.filter(destination=destination, group_key=key)
    # Events are added until the first attempt. A notification that a sender is just claiming is locked and skipped.
    waiting = Notification.objects.select_for_update(skip_locked=True, of=("self",)).filter(
        destination=destination, state=NotificationState.WAITING, attempt_count=0, payload=""
    )
    notification = waiting.filter(group_key=key).order_by("-id").first()
    if notification is not None and notification.items.count() >= MAX_GROUPED:
        notification = None
    due = due_at(
        route,
        event,
        now,
        lambda: group.filter(created_at__gt=now - FLAPPING_WINDOW)[:FLAPPING_COUNT].count(),
    )
    if notification is None:
        notification = Notification.objects.create(
            project_id=event.project_id,
            destination=destination,
            route_name=route.name,
            group_key=key,
            due_at=due,
        )
    elif due < notification.due_at and is_urgent(event):
        notification.due_at = due  # an urgent event sends the whole group early
        notification.save(update_fields=["due_at"])
    NotificationItem.objects.create(notification=notification, destination=destination, event=event)


def is_urgent(event: AlertEvent) -> bool:
    """Return whether an event sends its group early, and during quiet hours."""
    return (
        event.type == AlertEventType.APPROVAL_REQUESTED
        or "containment" in event.facts
        or event.facts["severity"] == Severity.CRITICAL
    )


def due_at(route: AlertRoute, event: AlertEvent, now: datetime, count_recent: Callable[[], int]) -> datetime:
    """Return when a group with this event is sent: after the group wait, later when flapping or in quiet hours.

    Events of containments are sent at once.

    Parameters
    ----------
    count_recent
        Counts the group's notifications of the last `FLAPPING_WINDOW`, up to `FLAPPING_COUNT`.
    """
    if "containment" in event.facts:
        return now  # a program may stop runs by it
    due = now + timedelta(seconds=route.group_wait_seconds)
    if event.type == AlertEventType.APPROVAL_REQUESTED:
        # Most of the time until the deadline belongs to the person who decides.
        deadline = datetime.fromisoformat(event.facts["approval"]["deadline"])
        due = min(due, now + max(timedelta(0), deadline - now) * APPROVAL_WAIT_SHARE)
    elif count_recent() >= FLAPPING_COUNT:
        due = max(due, now + FLAPPING_WAIT)
    if not is_urgent(event) or route.quiet_delays_critical:
        due = after_quiet_hours(route, due)
    return due


def after_quiet_hours(route: AlertRoute, moment: datetime) -> datetime:
    """Return `moment`, or the end of the quiet hours that it falls into.

    The hours are local times in the route's zone and may pass midnight; equal times mean no quiet hours.
    """
    start, end = route.quiet_from, route.quiet_until
    if start is None or end is None or start == end:
        return moment
    zone = ZoneInfo(route.quiet_zone or "UTC")
    local = moment.astimezone(zone)
    if not _is_between(local.time(), start, end):
        return moment
    day = local.date() + timedelta(days=1 if local.time() >= end else 0)
    # A local time that a clock change skips is read as the time after it, so the end is never in the past.
    return max(moment, datetime.combine(day, end, tzinfo=zone).astimezone(moment.tzinfo))


def _is_between(moment: time, start: time, end: time) -> bool:
    return start <= moment < end if start < end else moment >= start or moment < end
