"""Delivers notifications: claims, sends and records the outcome. At least once, always under the same id.

A destination has one notification in flight and its own thread meanwhile, so a slow one delays no other. The claim is
committed before sending starts. If the sender dies, the claim expires and the same notification is sent again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from queue import Empty, SimpleQueue

import orjson
import structlog
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from detection.models import (
    AlertDestination,
    AlertEvent,
    DeliveryAttempt,
    DestinationKind,
    Notification,
    NotificationState,
)
from detection.services import audit, outgoing_http
from detection.services.alerting import notifiers, reminders, rendering, routing

log = structlog.get_logger(__name__)

RETRY_SECONDS = (60, 300, 900, 3600, 3 * 3600, 8 * 3600, 24 * 3600)
"""Waits after the first, second … failed attempt. The attempt after the last wait is the last."""
TRIES = len(RETRY_SECONDS) + 1
BREAKER_FAILURES = 3
BREAKER_SECONDS = (60, 120, 300, 900, 1800)
MAX_RETRY_AFTER = timedelta(hours=24)
CLAIM = timedelta(seconds=60)
PATIENCE_SECONDS = 20.0
"""Time after which an attempt counts as failed; shorter than a claim."""
MAX_IN_FLIGHT = 32
KEPT_RESPONSE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DeliveryJob:
    """Everything needed to send one notification. Contains secrets; never logged."""

    project_id: int
    notification_id: int
    public_id: str
    claim: uuid.UUID
    destination_id: int
    kind: str
    address: str
    signing_secrets: tuple[str, ...]
    payload: str
    event_types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The outcome of one attempt."""

    is_success: bool
    duration_ms: int
    status: int | None = None
    problem: str = ""
    response: str = ""
    retry_after: timedelta | None = None
    is_gone: bool = False


def run(budget_seconds: float = 15.0) -> int:
    """Route new events and send what is due, until nothing is left or the time is used up.

    Parameters
    ----------
    budget_seconds
        No new attempt starts after this time.

    Returns
    -------
    int
        Number of attempts. Any number of processes may run this at once.
    """
    ends_at = time.monotonic() + budget_seconds
    outcomes: SimpleQueue[tuple[DeliveryJob, DeliveryOutcome]] = SimpleQueue()
    in_flight: dict[uuid.UUID, tuple[DeliveryJob, float]] = {}
    attempts = 0
    try:
        reminders.catch_up()
    except Exception:
        log.exception(
            "alert_catch_up_failed"
        )  # tried again next time; due notifications must not wait for it
    while True:
        while routing.route_pending() == routing.BATCH_EVENTS:
            pass
        is_over = time.monotonic() >= ends_at
        jobs = [] if is_over else claim_due(MAX_IN_FLIGHT - len(in_flight))
        for job in jobs:
            in_flight[job.claim] = (job, time.monotonic() + PATIENCE_SECONDS)
            threading.Thread(target=_attempt_into, args=(job, outcomes), name="alert", daemon=True).start()
        if not in_flight:
            return attempts
        attempts += _collect(outcomes, in_flight)


def _collect(
    outcomes: SimpleQueue[tuple[DeliveryJob, DeliveryOutcome]],
    in_flight: dict[uuid.UUID, tuple[DeliveryJob, float]],
) -> int:
    """Wait briefly for one outcome and record it; give up on attempts that take too long."""
    attempts = 0
    try:
        job, outcome = outcomes.get(timeout=0.5)
        if in_flight.pop(job.claim, None) is not None:
            settle(job, outcome)
            attempts += 1
    except Empty:
        pass
    for claim, (job, patience_ends_at) in list(in_flight.items()):
        if time.monotonic() > patience_ends_at:
            del in_flight[claim]
            settle(
                job, DeliveryOutcome(False, round(PATIENCE_SECONDS * 1000), problem="No response in time.")
            )
            attempts += 1
    return attempts


def _attempt_into(job: DeliveryJob, outcomes: SimpleQueue[tuple[DeliveryJob, DeliveryOutcome]]) -> None:
    outcomes.put((job, attempt(job)))


_READY = """
d.is_enabled AND (d.paused_until IS NULL OR d.paused_until <= %(now)s)
AND EXISTS (SELECT FROM detection_notification m WHERE m.project_id = {project} AND m.destination_id = d.id
    AND m.due_at <= %(now)s AND (m.state = 'waiting' OR (m.state = 'sending' AND m.claimed_until <= %(now)s)))
AND NOT EXISTS (SELECT FROM detection_notification m WHERE m.project_id = {project} AND m.destination_id = d.id
    AND m.state = 'sending' AND m.claimed_until > %(now)s)
"""
_FIND_READY = (
    f"SELECT d.project_id, d.id FROM detection_alertdestination d WHERE {_READY.format(project='d.project_id')}"  # noqa: S608
    " ORDER BY d.last_success_at NULLS FIRST, d.id LIMIT %(limit)s"
)
# Senders lock the destination's row, so that no two of them send to it at the same time.
_LOCK_READY = (
    f"SELECT d.id FROM detection_alertdestination d WHERE {_READY.format(project='%(project)s')}"  # noqa: S608
    " AND d.project_id = %(project)s AND d.id = %(id)s FOR NO KEY UPDATE SKIP LOCKED"
)


def claim_due(limit: int) -> list[DeliveryJob]:
    """Claim the oldest due notification of each destination that is ready.

    A destination is not ready while it is paused or disabled, or while another of its notifications is in flight.
    """
    if limit <= 0:
        return []
    with transaction.atomic(), connection.cursor() as cursor:
        now = timezone.now()
        cursor.execute(_FIND_READY, {"now": now, "limit": limit})
        jobs = []
        for project_id, destination_id in cursor.fetchall():
            cursor.execute(_LOCK_READY, {"now": now, "project": project_id, "id": destination_id})
            is_locked = cursor.fetchone() is not None
            notification = _oldest_due(project_id, destination_id) if is_locked else None
            if notification is not None:
                try:
                    with transaction.atomic():
                        jobs.append(_claim(notification))
                except DatabaseError:
                    raise
                except Exception:
                    # One that cannot be rendered must not delay the others; it stays visible as failed.
                    log.exception("notification_not_rendered", notification=notification.public_id)
                    Notification.objects.filter(project_id=project_id, pk=notification.pk).update(
                        state=NotificationState.FAILED,
                        claim=None,
                        claimed_until=None,
                        finished_at=timezone.now(),
                    )
        return jobs


def _oldest_due(project_id: int, destination_id: int) -> Notification | None:
    now = timezone.now()
    of_destination = Notification.objects.filter(project_id=project_id, destination_id=destination_id)
    rows = of_destination.select_for_update(of=("self",), skip_locked=True).select_related(
        "destination", "project"
    )
    open_rows = rows.filter(due_at__lte=now, state__in=("waiting", "sending"))
    for row in open_rows.order_by("due_at", "id")[:2]:
        if row.state == NotificationState.WAITING or (row.claimed_until and row.claimed_until <= now):
            # A sender that had to wait for the lock may find that the previous one has just claimed another.
            busy = of_destination.filter(state=NotificationState.SENDING, claimed_until__gt=now)
            return None if busy.exists() else row
    return None


def _claim(notification: Notification) -> DeliveryJob:
    events = list(AlertEvent.objects.filter(items__notification=notification).order_by("id"))
    if not notification.payload:
        now, project = timezone.now(), notification.project.slug
        if notification.is_test:
            notification.payload = rendering.test_payload(
                notification.public_id, project, notification.destination.name, now
            )
            notification.title = "Test notification"
        else:
            rendering.update_closed_approvals(events)
            notification.payload = rendering.payload(notification.public_id, project, events, now)
            notification.title = rendering.title_of(events)[:300]
    if notification.tries_left <= 0:
        notification.tries_left = TRIES
    notification.state, notification.claim = NotificationState.SENDING, uuid.uuid4()
    notification.claimed_until = timezone.now() + CLAIM
    notification.save(update_fields=["payload", "title", "tries_left", "state", "claim", "claimed_until"])
    destination = notification.destination
    return DeliveryJob(
        notification.project_id,
        notification.pk,
        notification.public_id,
        notification.claim,
        destination.pk,
        destination.kind,
        destination.address,
        tuple(destination.signing_secrets),
        rendering.with_links(notification.payload, notification.project.slug, events),
        tuple(event.type for event in events),
    )


def attempt(job: DeliveryJob) -> DeliveryOutcome:
    """Send one notification. Uses no database and raises nothing."""
    started = time.monotonic()

    def spent() -> int:
        return round((time.monotonic() - started) * 1000)

    try:
        if job.kind == DestinationKind.WEBHOOK:
            response = outgoing_http.post(
                job.address, webhook_headers(job, int(time.time())), job.payload.encode()
            )
            return _outcome_of(response, spent())
        data = orjson.loads(job.payload)["data"]
        notifiers.notify(
            job.address,
            data["title"],
            data["text"],
            is_success=bool(job.event_types) and rendering.is_recovery(job.event_types),
        )
        return DeliveryOutcome(True, spent())
    except (outgoing_http.AddressNotAllowed, outgoing_http.Unreachable) as error:
        return DeliveryOutcome(False, spent(), problem=str(error)[:300])
    except Exception as error:  # the collecting loop needs an outcome for every job
        log.exception("alert_attempt_failed", notification=job.public_id)
        return DeliveryOutcome(False, spent(), problem=f"Internal error: {type(error).__name__}.")


def webhook_headers(job: DeliveryJob, timestamp: int) -> dict[str, str]:
    """Return the headers of one attempt, signed with every active secret as in Standard Webhooks.

    Parameters
    ----------
    timestamp
        Unix time of this attempt in seconds. The id is the same for all attempts.
    """
    signed = f"{job.public_id}.{timestamp}.{job.payload}".encode()
    signatures = [
        "v1,"
        + base64.b64encode(
            hmac.new(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256).digest()
        ).decode()
        for secret in job.signing_secrets
    ]
    return {
        "Content-Type": "application/json",
        "User-Agent": "LoopGuard-Alerts/1",
        "webhook-id": job.public_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


def _outcome_of(response: outgoing_http.OutgoingResponse, duration_ms: int) -> DeliveryOutcome:
    status = response.status
    is_success = 200 <= status < 300
    problem = ""
    if 300 <= status < 400:
        problem = f"The receiver responded {status}. Redirects are not followed."
    elif not is_success:
        problem = f"The receiver responded {status}."
    body = response.body[:KEPT_RESPONSE_BYTES].decode("utf-8", "replace").replace("\x00", "␀")
    retry_after = _retry_after(response.headers.get("retry-after", "")) if status in (429, 503) else None
    return DeliveryOutcome(is_success, duration_ms, status, problem, body, retry_after, is_gone=status == 410)


def _retry_after(text: str) -> timedelta | None:
    """Parse ``Retry-After``, in seconds or as a date; at most one day."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), MAX_RETRY_AFTER)
    try:
        moment = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        return None
    return min(max(moment - timezone.now(), timedelta(0)), MAX_RETRY_AFTER)


@transaction.atomic
def settle(job: DeliveryJob, outcome: DeliveryOutcome) -> bool:
    """Record the outcome of an attempt, if the claim is still valid.

    Returns
    -------
    bool
        False if another sender has taken the notification over or it was deleted; nothing is recorded then.
    """
    # Destination first, as in claiming, so that two senders cannot deadlock.
    destinations = AlertDestination.objects.select_for_update(no_key=True).filter(project_id=job.project_id)
    destination = destinations.filter(pk=job.destination_id).first()
    notifications = Notification.objects.select_for_update().filter(project_id=job.project_id)
    notification = notifications.filter(pk=job.notification_id, claim=job.claim).first()
    if destination is None or notification is None:
        return False
    now = timezone.now()
    notification.attempt_count += 1
    notification.tries_left -= 1
    notification.claim = notification.claimed_until = None
    DeliveryAttempt.objects.create(
        notification=notification,
        number=notification.attempt_count,
        at=now - timedelta(milliseconds=outcome.duration_ms),
        duration_ms=outcome.duration_ms,
        is_success=outcome.is_success,
        status=outcome.status,
        problem=outcome.problem,
        response=outcome.response,
    )
    if outcome.is_success:
        notification.state, notification.finished_at = NotificationState.DELIVERED, now
    elif notification.is_test or notification.tries_left <= 0 or outcome.is_gone:
        notification.state, notification.finished_at = NotificationState.FAILED, now
    else:
        notification.state = NotificationState.WAITING
        notification.due_at = now + _wait(notification.tries_left, outcome)
    notification.save()
    _update_destination(destination, outcome, now)
    return True


def _wait(tries_left: int, outcome: DeliveryOutcome) -> timedelta:
    seconds = RETRY_SECONDS[TRIES - 1 - tries_left]
    # Spread out, so that attempts that failed together are not repeated together.
    wait = timedelta(seconds=seconds * random.uniform(1.0, 1.1))  # noqa: S311
    return max(wait, outcome.retry_after) if outcome.retry_after else wait


def _update_destination(destination: AlertDestination, outcome: DeliveryOutcome, now: datetime) -> None:
    if outcome.is_success:
        destination.failures_in_row, destination.paused_until = 0, None
        destination.last_success_at, destination.last_problem = now, ""
    else:
        destination.failures_in_row += 1
        destination.last_failure_at, destination.last_problem = now, outcome.problem
        over = destination.failures_in_row - BREAKER_FAILURES
        if over >= 0:
            pause = BREAKER_SECONDS[min(over, len(BREAKER_SECONDS) - 1)]
            destination.paused_until = now + timedelta(seconds=pause)
        if outcome.retry_after:
            destination.paused_until = max(destination.paused_until or now, now + outcome.retry_after)
        if outcome.is_gone:
            destination.is_enabled = False
            destination.last_problem = "The receiver responded 410 Gone, so the destination was disabled."
            audit.record(
                audit.SYSTEM,
                "destination.disable",
                destination.public_id,
                project_id=destination.project_id,
                after={"is_enabled": False, "reason": "The receiver responded 410 Gone."},
            )
    destination.save()


def send_now(project_id: int, notification_id: int) -> DeliveryOutcome | None:
    """Send one notification in this thread, even if its destination is paused; for test notifications.

    Returns
    -------
    DeliveryOutcome or None
        None if another sender has claimed it.
    """
    with transaction.atomic():
        rows = Notification.objects.filter(project_id=project_id, pk=notification_id)
        waiting = rows.values_list("destination_id", flat=True).first()
        if waiting is None:
            return None
        AlertDestination.objects.select_for_update(no_key=True).get(project_id=project_id, pk=waiting)
        notification = (
            rows.select_for_update(of=("self",))
            .select_related("destination", "project")
            .filter(state=NotificationState.WAITING)
            .first()
        )
        job = _claim(notification) if notification else None
    if job is None:
        return None
    outcome = attempt(job)
    settle(job, outcome)
    return outcome
