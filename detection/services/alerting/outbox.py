"""The outbox: alert events, written in the transaction of the change that they describe.

Routing them is in `routing`, sending in `delivery`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from django.db.models import Exists, OuterRef
from django.utils import timezone

from detection.models import (
    AlertEvent,
    AlertEventType,
    Approval,
    Containment,
    Incident,
    IncidentActivity,
    JudgeCall,
    LimitNotice,
    LoopActivity,
    Notification,
    NotificationItem,
    NotificationState,
    OutboxState,
    Session,
)
from detection.models.alert_facts import ReportFacts
from detection.models.incidents import IncidentLabel, IncidentStatus
from detection.services.alerting import event_facts

KEPT = timedelta(days=30)
_TYPE_OF_ACTION = {
    "opened": "opened",
    "reacted": "escalated",
    "ended": "ended",
    "reopened": "reopened",
}
CALLS_FOR_ATTENTION = ("opened", "returned", "reopened", "escalated")
_OF_ONE_RUN = {"fine_run": "fine", "confirmed_run": "confirmed"}
_TYPE_OF_VERB = {
    **{one: one for one in ("assigned", "done", "later", "fine", "confirmed", "reopened", "undone")},
    **_OF_ONE_RUN,
    "label_removed": "reopened",
}


def record_verb(change: LoopActivity) -> None:
    """Record what a person did with a loop, once its incidents are changed; must run in a transaction with the last.

    The facts are those of its newest incident, or of the one that the verb is about. A loop that is recorded only has
    no event, and neither has what is no verb, such as a comment. Two queries.
    """
    action = change.action.partition(":")[0]
    if action not in _TYPE_OF_VERB:
        return
    rows = change.loop.incidents.select_related("session").order_by("-last_seen_at", "-pk")
    newest = (rows.filter(pk=change.last_incident) if action in _OF_ONE_RUN else rows).first()
    if newest is not None and not newest.is_recorded_only:
        AlertEvent.objects.create(
            project_id=change.project_id,
            incident=newest,
            type=_TYPE_OF_VERB[action],
            actor=change.actor,
            facts=event_facts.incident_facts(newest, change.note),
        )


def record_activity(rows: Iterable[IncidentActivity]) -> list[AlertEvent]:
    """Record what detection did to incidents in one transaction; must run inside it.

    What makes an incident worth a look is one event of each transaction, the first of `CALLS_FOR_ATTENTION`: a loop
    that is detected and reacted to is opened. It has returned instead if a person had closed it and it was not open
    any more; routes of either type match that. An incident that is recorded only has none.

    Returns
    -------
    list of AlertEvent
        The events.
    """
    events: dict[tuple[str, str], IncidentActivity] = {}
    for row in rows:
        if row.action in _TYPE_OF_ACTION and not row.incident.is_recorded_only:
            event_type = _TYPE_OF_ACTION[row.action]
            if event_type == "opened" and _has_returned(row.incident):
                event_type = "returned"
            events[row.incident.public_id, event_type] = row
    return AlertEvent.objects.bulk_create(
        AlertEvent(
            project_id=row.incident.project_id,
            incident=row.incident,
            type=event_type,
            actor=row.actor,
            facts=event_facts.incident_facts(row.incident, row.note)
            | {"also": ["opened"] if event_type == "returned" else []},
        )
        for (public_id, event_type), row in events.items()
        if event_type not in CALLS_FOR_ATTENTION
        or not any(
            (public_id, other) in events
            for other in CALLS_FOR_ATTENTION[: CALLS_FOR_ATTENTION.index(event_type)]
        )
    )


def _has_returned(incident: Incident) -> bool:
    """Whether a new incident opens a loop again that a person has closed; a query only if a person has."""
    loop = incident.loop
    if loop.done_at is None and loop.label != IncidentLabel.FALSE_ALARM:
        return False
    others = loop.incidents.exclude(pk=incident.pk)
    return not others.filter(status=IncidentStatus.OPEN).exists()


def record_limit_notice(session: Session, notice: LimitNotice) -> None:
    """Record that a limit is nearly reached; must run inside the transaction that stores the notice."""
    AlertEvent.objects.create(
        project_id=session.project_id,
        type=AlertEventType.NEAR_LIMIT,
        actor="system",
        facts=event_facts.limit_notice_facts(session, notice),
    )


def record_request(approval: Approval, session: Session, event: AlertEvent | None) -> None:
    """Record that an approval was requested; must run inside the transaction of the change.

    Parameters
    ----------
    event
        What the transaction has recorded of the incident, if anything. It becomes part of the request, which is about
        the same call, and routes of either type match it.
    """
    also: list[str] = []
    if event is not None:
        also = [event.type, *event.facts.get("also", ())]
        event.delete()
    AlertEvent.objects.create(
        project_id=session.project_id,
        incident=approval.incident,
        type=AlertEventType.APPROVAL_REQUESTED,
        actor="system",
        facts=event_facts.approval_facts(approval, session) | {"also": also},
    )


def record_end(approval: Approval, session: Session) -> None:
    """Record that an approval was closed; must run inside the transaction of the change."""
    AlertEvent.objects.create(
        project_id=session.project_id,
        incident=approval.incident,
        type=AlertEventType.APPROVAL_CLOSED,
        actor=approval.decided_by or "system",
        facts=event_facts.approval_facts(approval, session),
    )


def record_judge_disabled(session: Session, approval: Approval, call: JudgeCall) -> None:
    """Record that the judge followed instructions in its data, so that nobody is judged by it for a day.

    Must run inside the transaction that stores the consultation.
    """
    AlertEvent.objects.create(
        project_id=session.project_id,
        type=AlertEventType.JUDGE_DISABLED,
        actor="system",
        facts=event_facts.judge_disabled_facts(approval, session, call),
    )


def record_containment(
    event_type: AlertEventType, row: Containment, actor: str, sessions: Mapping[int, Sequence[str]]
) -> None:
    """Record that a containment was created or lifted, or has ended; must run inside the transaction of the change.

    Parameters
    ----------
    sessions
        The projects whose routes may match it, each with ids of sessions that it reaches there.
    """
    AlertEvent.objects.bulk_create(
        AlertEvent(
            project_id=project_id,
            type=event_type,
            actor=actor[:150],
            facts=event_facts.containment_facts(row, reached),
        )
        for project_id, reached in sessions.items()
    )


def record_report(project_id: int, report: ReportFacts) -> None:
    """Record that the report of a week was made; must run inside the transaction that stores its link."""
    AlertEvent.objects.create(
        project_id=project_id,
        type=AlertEventType.WEEKLY_REPORT,
        actor="system",
        facts=event_facts.report_facts(report),
    )


def trim() -> None:
    """Delete routed events, and finished notifications with their attempts, after thirty days."""
    before = timezone.now() - KEPT
    done = (NotificationState.DELIVERED, NotificationState.FAILED)
    Notification.objects.filter(created_at__lt=before, state__in=done).delete()
    unsent = ~Exists(NotificationItem.objects.filter(event=OuterRef("pk")))
    AlertEvent.objects.filter(unsent, at__lt=before).exclude(state=OutboxState.PENDING).delete()
