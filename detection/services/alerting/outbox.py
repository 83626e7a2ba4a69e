"""From news to the messages that tell of it: the outbox, silences, routes, grouping, quiet hours.

News are the changes of incidents, approvals that wait and how they ended, and that a session comes close to a limit. A transition is written in the transaction of its change and routed later, once: either into exactly one message for
each destination, or to nobody, visibly. Sending is `delivery`; the rows that people edit are `destinations`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime, time, timedelta
from fnmatch import fnmatchcase
from typing import Any
from zoneinfo import ZoneInfo

import structlog
from django.db import transaction
from django.db.models import Prefetch
from django.utils import timezone

from detection.models import (
    AlertDelivery,
    AlertDeliveryItem,
    AlertDestination,
    AlertRoute,
    AlertSilence,
    AlertTransition,
    Approval,
    ApprovalState,
    DeliveryState,
    Incident,
    IncidentActivity,
    LimitNotice,
    OutboxState,
    Session,
    Severity,
    Transition,
)
from detection.services.alerting import incident_facts
from detection.sql.advisory_locks import AdvisoryLock, try_lock_until_commit

log = structlog.get_logger(__name__)

BATCH_TRANSITIONS = 200
GROUP_FIELDS = ("session", "loop", "kind", "tool", "agent", "model")
FLAP_MESSAGES, FLAP_WITHIN, FLAP_WAIT = 5, timedelta(minutes=10), timedelta(minutes=10)
"""A group that sent five messages within ten minutes is flapping: what follows is gathered for ten minutes each."""
ASKED_WAIT_SHARE = 0.25
"""An approval is gathered for at most this share of the time that is left to answer it."""
MAX_GATHERED = 500
KEPT = timedelta(days=30)
_OF_ACTIVITY = {"opened": "opened", "reacted": "escalated", "woke": "woke", "ended": "ended"}


def note_transition(incident: Incident, transition: str, actor: str = "system", note: str = "") -> None:
    """Put one change of an incident into the outbox; must run inside the transaction of the change.

    Parameters
    ----------
    transition
        One of `Transition`; anything else (a comment) is no news and is left out.
    """
    if transition in Transition.values:
        AlertTransition.objects.create(
            project_id=incident.project_id,
            incident=incident,
            transition=transition,
            actor=actor[:150],
            facts=incident_facts.facts_of(incident, note),
        )


def note_activity(rows: Iterable[IncidentActivity]) -> None:
    """Put what detection did to incidents in one transaction into the outbox.

    A loop that is found and reacted to in the same breath is one piece of news: it opened.
    """
    news: dict[tuple[str, str], IncidentActivity] = {}
    for row in rows:
        if row.action in _OF_ACTIVITY:
            news[row.incident.public_id, _OF_ACTIVITY[row.action]] = row
    AlertTransition.objects.bulk_create(
        AlertTransition(
            project_id=row.incident.project_id,
            incident=row.incident,
            transition=transition,
            actor=row.actor,
            facts=incident_facts.facts_of(row.incident, row.note),
        )
        for (name, transition), row in news.items()
        if transition != "escalated" or (name, "opened") not in news
    )


def note_limit(session: Session, notice: LimitNotice) -> None:
    """Put into the outbox that a session comes close to a limit; must run inside the transaction that stores the notice."""
    AlertTransition.objects.create(
        project_id=session.project_id,
        transition=Transition.NEAR_LIMIT,
        actor="system",
        facts=incident_facts.facts_of_notice(session, notice),
    )


def note_approval(approval: Approval, session: Session, transition: str) -> None:
    """Put into the outbox that a person is asked, or how that ended; must run inside the transaction of the change."""
    AlertTransition.objects.create(
        project_id=session.project_id,
        incident=approval.incident,
        transition=transition,
        actor=approval.decided_by or "system",
        facts=incident_facts.facts_of_approval(approval, session),
    )


def bring_up_to_date(entries: Iterable[AlertTransition]) -> None:
    """Give approvals that were closed since they were noted the facts of now: nobody should be called to answer them.

    Only what a message says is changed, the stored rows are left as they are.
    """
    asked = {
        entry.facts["approval"]["id"]: entry for entry in entries if entry.transition == Transition.REQUESTED
    }
    if asked:
        closed = Approval.objects.filter(public_id__in=asked).exclude(state=ApprovalState.OPEN)
        for approval in closed.select_related("session", "incident"):
            asked[approval.public_id].facts = incident_facts.facts_of_approval(approval, approval.session)


def route_pending() -> int:
    """Put what waits in the outbox into messages.

    Returns
    -------
    int
        How many transitions were looked at. Only one process routes at a time; another one returns 0 at once.
    """
    with transaction.atomic():
        if not is_only_router():
            return 0
        waiting = list(
            AlertTransition.objects.select_for_update(of=("self",))
            .filter(state=OutboxState.PENDING)
            .order_by("id")[:BATCH_TRANSITIONS]
        )
        routes: dict[int, list[AlertRoute]] = {}
        for entry in waiting:
            if entry.project_id not in routes:
                routes[entry.project_id] = routes_with_targets(entry.project_id)
            try:
                with transaction.atomic():
                    _route(entry, routes[entry.project_id])
            except Exception:
                # One transition that cannot be routed must not hold up the others; it stays visible as failed.
                log.exception("alert_routing_failed", transition=entry.pk)
                entry.state = OutboxState.FAILED
            entry.save(update_fields=["state", "silence"])
    return len(waiting)


def is_only_router() -> bool:
    """Take the right to put news into messages until the transaction's end; False when another process has it."""
    return try_lock_until_commit(AdvisoryLock.ALERT_ROUTING)


def routes_with_targets(project_id: int) -> list[AlertRoute]:
    """Return the routes in use, in their order, each with its destinations as ``targets``."""
    enabled = Prefetch("destinations", AlertDestination.objects.order_by("pk"), to_attr="targets")
    return list(AlertRoute.objects.filter(project_id=project_id, is_enabled=True).prefetch_related(enabled))


def _route(entry: AlertTransition, routes: Sequence[AlertRoute]) -> None:
    silence = silence_for(running_silences(entry.project_id, timezone.now()), entry.facts)
    if silence is not None:
        entry.state, entry.silence = OutboxState.SILENCED, silence
        return
    told: set[int] = set()
    for route in routes:
        if not wants(route, entry.transition, entry.facts):
            continue
        for destination in route.targets:  # type: ignore[attr-defined]
            if destination.pk not in told:
                told.add(destination.pk)
                put_into_message(entry, route, destination)
        if not route.goes_on:
            break
    entry.state = OutboxState.ROUTED if told else OutboxState.UNROUTED


def matches(row: AlertRoute | AlertSilence, facts: dict[str, Any]) -> bool:
    """Whether the row's lists all match; an empty list does, and patterns are globs."""

    def fits(patterns: list[str], value: str) -> bool:
        return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)

    return (
        (not row.kinds or facts["kind"] in row.kinds)
        and (not row.severities or facts["severity"] in row.severities)
        and fits(row.tools, facts["tool"])
        and fits(row.agents, facts["agent"])
        and fits(row.backends, facts["backend"])
        and fits(row.model_names, facts["model"])
    )


def wants(route: AlertRoute, transition: str, facts: dict[str, Any]) -> bool:
    """Whether a route takes this transition."""
    return (
        (not route.transitions or transition in route.transitions)
        and (route.includes_demo or not facts["is_demo"])
        and matches(route, facts)
    )


def running_silences(project_id: int, now: datetime) -> list[AlertSilence]:
    """Return the silences of a moment, the one that lasts longest first."""
    running = AlertSilence.objects.filter(project_id=project_id, starts_at__lte=now, ends_at__gt=now)
    return list(running.order_by("-ends_at"))


def silence_for(silences: Iterable[AlertSilence], facts: dict[str, Any]) -> AlertSilence | None:
    """Return the first silence that holds the news of these facts back."""
    for silence in silences:
        if (not silence.loop_id or silence.loop_id == facts["loop_id"]) and matches(silence, facts):
            return silence
    return None


def group_key(route: AlertRoute, facts: dict[str, Any]) -> str:
    """Name the group of an incident on a route: equal values in the route's grouping fields share messages."""
    named = {**facts, "loop": facts["loop_id"], "model": f"{facts['backend']}/{facts['model']}"}
    text = "\x00".join([str(route.pk), *(f"{field}={named[field]}" for field in sorted(route.group_by))])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def put_into_message(entry: AlertTransition, route: AlertRoute, destination: AlertDestination) -> None:
    """Let a destination hear of a transition by a route: in the message that its group is gathering, or in a new one."""
    key, now = group_key(route, entry.facts), timezone.now()
    of_group = AlertDelivery.objects.filter(destination=destination, group_key=key)
    # A message gathers until its first attempt. One that a sender is just taking is locked, and left alone.
    message = (
        of_group.select_for_update(skip_locked=True)
        .filter(state=DeliveryState.WAITING, attempt_count=0, payload="")
        .order_by("-id")
        .first()
    )
    if message is not None and message.items.count() >= MAX_GATHERED:
        message = None
    is_guarded = entry.transition == Transition.REQUESTED
    is_urgent = is_guarded or entry.facts["severity"] == Severity.CRITICAL
    due = now + timedelta(seconds=route.group_wait_seconds)
    if is_guarded:
        # Most of the time that is left belongs to whoever is to answer, whatever the route gathers for.
        deadline = datetime.fromisoformat(entry.facts["approval"]["deadline"])
        due = min(due, now + max(timedelta(0), deadline - now) * ASKED_WAIT_SHARE)
    elif of_group.filter(created_at__gt=now - FLAP_WITHIN)[:FLAP_MESSAGES].count() >= FLAP_MESSAGES:
        due = max(due, now + FLAP_WAIT)
    if not is_urgent or route.quiet_holds_critical:
        due = after_quiet_hours(route, due)
    if message is None:
        message = AlertDelivery.objects.create(
            project_id=entry.project_id,
            destination=destination,
            route_name=route.name,
            group_key=key,
            due_at=due,
        )
    elif due < message.due_at and is_urgent:
        message.due_at = due  # something urgent takes what waits for the morning along
        message.save(update_fields=["due_at"])
    AlertDeliveryItem.objects.create(delivery=message, destination=destination, transition=entry)


def after_quiet_hours(route: AlertRoute, moment: datetime) -> datetime:
    """Return `moment`, or the end of the route's quiet hours that it lies in.

    The hours are local times of the route's zone and may go past midnight; equal times mean the whole day is never quiet.
    """
    start, end = route.quiet_from, route.quiet_until
    if start is None or end is None or start == end:
        return moment
    zone = ZoneInfo(route.quiet_zone or "UTC")
    local = moment.astimezone(zone)
    if not _lies_between(local.time(), start, end):
        return moment
    day = local.date() + timedelta(days=1 if local.time() >= end else 0)
    # A time that the clocks skip is read as the moment after the jump, so that the end never comes to lie in the past.
    return max(moment, datetime.combine(day, end, tzinfo=zone).astimezone(moment.tzinfo))


def _lies_between(moment: time, start: time, end: time) -> bool:
    return start <= moment < end if start < end else moment >= start or moment < end


def trim() -> None:
    """Remove what is older than thirty days: settled transitions, and messages with their attempts."""
    before = timezone.now() - KEPT
    done = (DeliveryState.DELIVERED, DeliveryState.FAILED)
    AlertDelivery.objects.filter(created_at__lt=before, state__in=done).delete()
    AlertTransition.objects.filter(at__lt=before, items=None).exclude(state=OutboxState.PENDING).delete()
