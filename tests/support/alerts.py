"""Short ways to make what alert tests start from."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from detection.models import AlertDestination, AlertEvent, AlertRoute, Incident, Notification, Project
from detection.services.alerting import alert_routes, delivery, destinations, event_facts
from detection.services.audit import Actor
from detection.services.incidents import loop_triage
from detection.services.tracking import loops
from tests.support.http_receiver import Receiver

ANA = Actor("ana")


def make_incident(project: Project, **fields: Any) -> Incident:
    """An incident as detection would leave it, without a session."""
    values: dict[str, Any] = {
        "session_name": "s-1", "agent": "triage", "backend": "openai", "model": "gpt-5", "calls_digest": "abc", "kind": "repeat",
        "tool": "search_web", "count": 4, "limit": 4, "window_seconds": 120, "decision": "block", "rung": "block", "first_seq": 1,
        "last_seq": 4, "ended_at": timezone.now(),
    }  # fmt: skip
    incident = Incident(project=project, **{**values, **fields})
    if "loop" not in fields:
        loops.assign([incident])
    incident.save()
    return incident


def note_event(incident: Incident, event_type: str, actor: str = "system", note: str = "") -> None:
    """An alert event about an incident, as detection or a verb would leave it."""
    AlertEvent.objects.create(
        project=incident.project, incident=incident, type=event_type, actor=actor,
        facts=event_facts.incident_facts(incident, note),
    )  # fmt: skip


def fine_run(incident: Incident, actor: Actor = ANA, reason: str = "") -> None:
    """Label one incident "not a loop", without an exception."""
    project_id, loop_id = incident.project_id, incident.loop.public_id
    change = loop_triage.start_fine(project_id, loop_id, actor, reason, "", only=incident)
    loop_triage.finish(project_id, loop_id, change, 2.0)


def make_webhook(project: Project, receiver: Receiver, name: str = "hook") -> AlertDestination:
    row, _ = destinations.create_destination(project.pk, ANA, name=name, kind="webhook", address=receiver.url)
    return row


def make_route(project: Project, *targets: AlertDestination, name: str = "all", **values: Any) -> AlertRoute:
    values = {"group_wait_seconds": 0, "event_types": [], **values}
    return alert_routes.save_route(
        project.pk, ANA, name=name, destinations=[row.public_id for row in targets], **values
    )


def come_due(destination: AlertDestination | None = None) -> None:
    """Let the waits of messages and of breakers be over."""
    past = timezone.now() - timedelta(seconds=1)
    messages = Notification.objects.filter(state="waiting")
    if destination is not None:
        messages = messages.filter(destination=destination)
    messages.update(due_at=past)
    AlertDestination.objects.exclude(paused_until=None).update(paused_until=past)


def send_all() -> int:
    return delivery.run(budget_seconds=5)
