"""What is told again, and what is told late: incidents that nobody takes up, and what a silence hid that is over.

Both only make news; who hears of them, when and how gathered is `alerts`.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import Count, Exists, Max, OuterRef, Q, QuerySet
from django.utils import timezone

from detection.models import (
    AlertDeliveryItem,
    AlertRoute,
    AlertSilence,
    AlertTransition,
    Approval,
    ApprovalState,
    DeliveryState,
    Incident,
    OutboxState,
    Transition,
)
from detection.models.incidents import IncidentStatus
from detection.services.alerting import incident_facts, outbox

_OF_APPROVALS = (Transition.REQUESTED, Transition.CLOSED)
MAX_AT_ONCE = 500
"""Incidents of one route and destination, or of one silence, in one turn; the rest of a route's is told next time."""


def _waiting_for_people() -> QuerySet[Incident]:
    """Incidents that nobody has taken up, and that the agent has not left by itself."""
    return Incident.objects.filter(
        status=IncidentStatus.OPEN, opened_at__gt=timezone.now() - outbox.KEPT
    ).exclude(recovered=True)


@transaction.atomic
def remind() -> int:
    """Tell destinations again of incidents that are open still, as long after the last message as the route says.

    Returns
    -------
    int
        How many incidents are told of again. A few queries for each route that repeats, none without such routes.
        Silenced ones wait for the end of the silence, and whoever has not heard of an incident is not reminded of it.
    """
    projects = set(
        AlertRoute.objects.filter(is_enabled=True, repeat_hours__gt=0).values_list("project_id", flat=True)
    )
    if not projects or not outbox.is_only_router():
        return 0
    now, entries = timezone.now(), dict[int, AlertTransition]()
    for project_id in sorted(projects):
        silences = outbox.running_silences(project_id, now)
        for route in outbox.routes_with_targets(project_id):
            if route.repeat_hours:
                _remind_by(route, silences, entries)
    return len(entries)


def _remind_by(route: AlertRoute, silences: list[AlertSilence], entries: dict[int, AlertTransition]) -> None:
    told_before = timezone.now() - timedelta(hours=route.repeat_hours)
    for destination in route.targets:  # type: ignore[attr-defined]
        to_it = Q(transitions__items__destination=destination)
        unsent = Q(transitions__items__delivery__state__in=(DeliveryState.WAITING, DeliveryState.SENDING))
        due = (
            _waiting_for_people()
            .filter(project_id=route.project_id)
            .annotate(
                told_at=Max("transitions__items__delivery__finished_at", filter=to_it),
                unsent=Count("transitions__items", filter=to_it & unsent),
            )
            .filter(told_at__lte=told_before, unsent=0)
        )
        reminded = 0
        for incident in due.select_related("session").order_by("told_at", "pk").iterator(MAX_AT_ONCE):
            if reminded == MAX_AT_ONCE:
                break
            facts = incident_facts.facts_of(incident)
            is_wanted = outbox.matches(route, facts) and (route.includes_demo or not incident.is_demo)
            if not is_wanted or outbox.silence_for(silences, facts) is not None:
                continue
            reminded += 1
            if incident.pk not in entries:
                entries[incident.pk] = AlertTransition.objects.create(
                    project_id=route.project_id,
                    incident=incident,
                    transition=Transition.STILL_OPEN,
                    actor="system",
                    facts=facts,
                    state=OutboxState.ROUTED,
                )
            outbox.put_into_message(entries[incident.pk], route, destination)


@transaction.atomic
def catch_up() -> int:
    """Put into the outbox what silences hid that are over, as far as it is open still and nobody was told of it.

    Returns
    -------
    int
        How many pieces of news. One query over a small index while no silence has just ended.
    """
    now = timezone.now()
    ended = AlertSilence.objects.select_for_update(skip_locked=True).filter(
        ends_at__lte=now, caught_up_at=None
    )
    late: list[AlertTransition] = []
    for silence in ended.order_by("ends_at")[:MAX_AT_ONCE]:
        late += _late_news(silence)
        silence.caught_up_at = now
        silence.save(update_fields=["caught_up_at"])
    AlertTransition.objects.bulk_create(late)
    return len(late)


def _late_news(silence: AlertSilence) -> list[AlertTransition]:
    hidden = AlertTransition.objects.filter(silence=silence)
    told = AlertDeliveryItem.objects.filter(transition__incident=OuterRef("pk"))
    incidents = _waiting_for_people().filter(
        ~Exists(told), pk__in=hidden.exclude(transition__in=_OF_APPROVALS).values("incident")
    )
    note = f"Held back until now by the silence “{silence.reason}”."
    news = [
        _late(silence, incident, Transition.OPENED, incident_facts.facts_of(incident, note))
        for incident in incidents.select_related("session").order_by("-opened_at")[:MAX_AT_ONCE]
    ]
    asked = hidden.filter(transition=Transition.REQUESTED).values_list("facts__approval__id", flat=True)
    approvals = Approval.objects.filter(
        public_id__in=list(asked), state=ApprovalState.OPEN, deadline__gt=timezone.now()
    )
    news += [
        _late(silence, one.incident, Transition.REQUESTED, incident_facts.facts_of_approval(one, one.session))
        for one in approvals.select_related("session", "incident")
    ]
    return news


def _late(
    silence: AlertSilence, incident: Incident | None, transition: str, facts: dict[str, object]
) -> AlertTransition:
    return AlertTransition(
        project_id=silence.project_id, incident=incident, transition=transition, actor="system", facts=facts
    )
