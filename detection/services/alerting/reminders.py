"""Repeated and late alerts: for incidents that stay open, and for events that an ended silence suppressed."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import Count, Exists, Max, OuterRef, Q, QuerySet
from django.utils import timezone

from detection.models import (
    AlertEvent,
    AlertEventType,
    AlertRoute,
    AlertSilence,
    Approval,
    ApprovalState,
    Incident,
    NotificationItem,
    NotificationState,
    OutboxState,
)
from detection.models.alert_facts import AlertFacts
from detection.models.incidents import IncidentStatus
from detection.models.tenants import projects_of
from detection.services.alerting import event_facts, outbox, postponing, routing
from detection.services.alerting.routing import EnabledRoute

MAX_AT_ONCE = 500
"""Maximum number of incidents per route and destination, or per silence, in one run; the rest follow in the next."""
_APPROVAL_TYPES = (AlertEventType.APPROVAL_REQUESTED, AlertEventType.APPROVAL_CLOSED)


def _unattended_incidents() -> QuerySet[Incident]:
    """Return open incidents of loops that nobody owns."""
    since = timezone.now() - outbox.KEPT
    return Incident.objects.filter(status=IncidentStatus.OPEN, opened_at__gt=since, loop__assignee=None)


@transaction.atomic
def remind() -> int:
    """Notify destinations again of open incidents, at the repeat interval of their route.

    Silenced incidents wait for the end of the silence. A destination is reminded only of incidents that it was notified
    of before.

    Returns
    -------
    int
        Number of incidents. Costs a few queries per route with a repeat interval, and one without such routes.
    """
    projects = projects_of(AlertRoute.objects.filter(is_enabled=True, repeat_interval_hours__gt=0))
    if not projects or not routing.acquire_routing_lock():
        return 0
    now, events = timezone.now(), dict[int, AlertEvent]()
    for project_id in projects:
        silences = routing.active_silences(project_id, now)
        for enabled in routing.enabled_routes(project_id):
            if enabled.route.repeat_interval_hours:
                _remind_by(enabled, silences, events)
    return len(events)


def _remind_by(enabled: EnabledRoute, silences: list[AlertSilence], events: dict[int, AlertEvent]) -> None:
    route = enabled.route
    notified_before = timezone.now() - timedelta(hours=route.repeat_interval_hours)
    for destination in enabled.destinations:
        to_it = Q(alert_events__items__destination=destination)
        unsent = Q(
            alert_events__items__notification__state__in=(
                NotificationState.WAITING,
                NotificationState.SENDING,
            )
        )
        due = (
            _unattended_incidents()
            .filter(project_id=route.project_id)
            .annotate(
                notified_at=Max("alert_events__items__notification__finished_at", filter=to_it),
                unsent=Count("alert_events__items", filter=to_it & unsent),
            )
            .filter(notified_at__lte=notified_before, unsent=0)
        )
        reminded, tags = 0, routing.tags_of_project(route.project_id)
        for incident in (
            due.select_related("session", "loop").order_by("notified_at", "pk").iterator(MAX_AT_ONCE)
        ):
            if reminded == MAX_AT_ONCE:
                break
            facts = event_facts.incident_facts(incident)
            facts["tags"] = tags.of(facts)
            is_matched = routing.matches(route, facts) and (route.includes_demo or not incident.is_demo)
            if not is_matched or routing.matching_silence(silences, facts) is not None:
                continue
            reminded += 1
            if incident.pk not in events:
                events[incident.pk] = AlertEvent.objects.create(
                    project_id=route.project_id,
                    incident=incident,
                    type=AlertEventType.STILL_OPEN,
                    actor="system",
                    facts=facts,
                    state=OutboxState.ROUTED,
                )
            routing.add_to_notification(events[incident.pk], route, destination)


@transaction.atomic
def catch_up() -> int:
    """Record again the events that ended silences suppressed, if their incidents are still open and were never sent.

    Returns
    -------
    int
        Number of events. Costs one query on a small index while no silence has just ended.
    """
    now = timezone.now()
    ended = AlertSilence.objects.filter(ends_at__lte=now, caught_up_at=None)
    late: list[AlertEvent] = []
    for project_id in projects_of(ended):
        rows = ended.filter(project_id=project_id).select_for_update(skip_locked=True, of=("self",))
        for silence in rows.select_related("loop").order_by("ends_at")[:MAX_AT_ONCE]:
            events, is_whole = _late_events(silence)
            late += events
            if is_whole:
                postponing.note_end(silence)
                silence.caught_up_at = now
                silence.save(update_fields=["caught_up_at"])
    AlertEvent.objects.bulk_create(late)
    return len(late)


def _late_events(silence: AlertSilence) -> tuple[list[AlertEvent], bool]:
    """Return what was not recorded again yet, up to `MAX_AT_ONCE` incidents, and whether that is the last of it."""
    suppressed = AlertEvent.objects.filter(silence=silence)
    # What is recorded again comes after everything that an ended silence has suppressed.
    newest = suppressed.aggregate(newest=Max("pk"))["newest"] or 0
    again = AlertEvent.objects.filter(project_id=silence.project_id, pk__gt=newest)
    sent = NotificationItem.objects.filter(project_id=silence.project_id, event__incident=OuterRef("pk"))
    incidents = _unattended_incidents().filter(
        ~Exists(sent),
        ~Exists(again.filter(incident=OuterRef("pk"), type=AlertEventType.OPENED)),
        project_id=silence.project_id,
        pk__in=suppressed.exclude(type__in=_APPROVAL_TYPES).values("incident"),
    )
    note = f"Suppressed until now by the silence “{silence.reason}”."
    found = [*incidents.select_related("session", "loop").order_by("-opened_at", "-pk")[: MAX_AT_ONCE + 1]]
    events = [
        _late_event(silence, incident, AlertEventType.OPENED, event_facts.incident_facts(incident, note))
        for incident in found[:MAX_AT_ONCE]
    ]
    requests = {"type": AlertEventType.APPROVAL_REQUESTED}
    approvals = Approval.objects.filter(
        project_id=silence.project_id,
        public_id__in=_approvals_of(suppressed.filter(**requests)) - _approvals_of(again.filter(**requests)),
        state=ApprovalState.OPEN,
        deadline__gt=timezone.now(),
    )
    events += [
        _late_event(
            silence,
            approval.incident,
            AlertEventType.APPROVAL_REQUESTED,
            event_facts.approval_facts(approval, approval.session),
        )
        for approval in approvals.select_related("session", "incident__loop")
    ]
    return events, len(found) <= MAX_AT_ONCE


def _approvals_of(requested: QuerySet[AlertEvent]) -> set[str]:
    return {*requested.values_list("facts__approval__id", flat=True)}


def _late_event(
    silence: AlertSilence, incident: Incident | None, event_type: AlertEventType, facts: AlertFacts
) -> AlertEvent:
    return AlertEvent(
        project_id=silence.project_id, incident=incident, type=event_type, actor="system", facts=facts
    )
