"""Hands messages over: claims, sends, and notes what came of it. At least once, always under the same id.

One message of a destination is in flight at a time, and every destination has a thread of its own while it is spoken to,
so a slow one delays nobody. A claim is committed before the sending begins; a sender that dies leaves a claim that runs
out, and the same message goes out again. Which messages there are is the business of `alerts`.
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
from django.db import connection, transaction
from django.utils import timezone

from detection.models import (
    AlertAttempt,
    AlertDelivery,
    AlertDestination,
    AlertTransition,
    DeliveryState,
    DestinationKind,
)
from detection.services import audit, outgoing_http
from detection.services.alerting import notifiers, outbox, reminders, rendering

log = structlog.get_logger(__name__)

RETRY_SECONDS = (60, 300, 900, 3600, 3 * 3600, 8 * 3600, 24 * 3600)
"""Waits after the first, second … failed attempt; the attempt after the last one is the last."""
TRIES = len(RETRY_SECONDS) + 1
BREAKER_FAILURES = 3
BREAKER_SECONDS = (60, 120, 300, 900, 1800)
MAX_RETRY_AFTER = timedelta(hours=24)
CLAIM = timedelta(seconds=60)
PATIENCE_SECONDS = 20.0
"""How long a thread may take before its attempt counts as failed; less than a claim lasts."""
MAX_IN_FLIGHT = 32
KEPT_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that sending one message takes; holds secrets, is never logged."""

    delivery_id: int
    public_id: str
    claim: uuid.UUID
    destination_id: int
    kind: str
    address: str
    signing_secrets: tuple[str, ...]
    payload: str
    transitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt."""

    is_success: bool
    duration_ms: int
    status: int | None = None
    problem: str = ""
    answer: str = ""
    retry_after: timedelta | None = None
    is_gone: bool = False


def run(budget_seconds: float = 15.0) -> int:
    """Route what is new and send what is due, as long as there is something or until the budget is spent.

    Returns
    -------
    int
        How many attempts were made. Any number of processes may run at once.
    """
    ends_at = time.monotonic() + budget_seconds
    answers: SimpleQueue[tuple[Job, Outcome]] = SimpleQueue()
    in_flight: dict[uuid.UUID, tuple[Job, float]] = {}
    made = 0
    try:
        reminders.catch_up()
    except Exception:
        log.exception("alert_catch_up_failed")  # it comes again; what is due now must not wait for it
    while True:
        while outbox.route_pending() == outbox.BATCH_TRANSITIONS:
            pass
        is_over = time.monotonic() >= ends_at
        jobs = [] if is_over else claim_due(MAX_IN_FLIGHT - len(in_flight))
        for job in jobs:
            in_flight[job.claim] = (job, time.monotonic() + PATIENCE_SECONDS)
            threading.Thread(target=_attempt_into, args=(job, answers), name="alert", daemon=True).start()
        if not in_flight:
            return made
        made += _collect(answers, in_flight)


def _collect(answers: SimpleQueue[tuple[Job, Outcome]], in_flight: dict[uuid.UUID, tuple[Job, float]]) -> int:
    """Wait a moment for one answer and note it; give up on what takes too long."""
    made = 0
    try:
        job, outcome = answers.get(timeout=0.5)
        if in_flight.pop(job.claim, None) is not None:
            settle(job, outcome)
            made += 1
    except Empty:
        pass
    for claim, (job, patience_ends_at) in list(in_flight.items()):
        if time.monotonic() > patience_ends_at:
            del in_flight[claim]
            settle(job, Outcome(False, round(PATIENCE_SECONDS * 1000), problem="No answer in time."))
            made += 1
    return made


def _attempt_into(job: Job, answers: SimpleQueue[tuple[Job, Outcome]]) -> None:
    answers.put((job, attempt(job)))


def claim_due(limit: int) -> list[Job]:
    """Claim the message that has waited longest of every destination that may be spoken to now.

    A destination is left out while it is paused or disabled, or while another of its messages is in flight.
    """
    if limit <= 0:
        return []
    with transaction.atomic(), connection.cursor() as cursor:
        # The destination's row is what senders compete for, so that two of them never speak to it at once.
        cursor.execute(
            "SELECT d.id FROM detection_alertdestination d WHERE d.is_enabled"
            " AND (d.paused_until IS NULL OR d.paused_until <= %(now)s)"
            " AND EXISTS (SELECT FROM detection_alertdelivery m WHERE m.destination_id = d.id AND m.due_at <= %(now)s"
            "   AND (m.state = 'waiting' OR (m.state = 'sending' AND m.claimed_until <= %(now)s)))"
            " AND NOT EXISTS (SELECT FROM detection_alertdelivery m WHERE m.destination_id = d.id AND m.state = 'sending'"
            "   AND m.claimed_until > %(now)s)"
            " ORDER BY d.last_success_at NULLS FIRST, d.id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED",
            {"now": timezone.now(), "limit": limit},
        )
        jobs = []
        for (destination_id,) in cursor.fetchall():
            message = _oldest_due(destination_id)
            if message is not None:
                jobs.append(_claim(message))
        return jobs


def _oldest_due(destination_id: int) -> AlertDelivery | None:
    now = timezone.now()
    rows = AlertDelivery.objects.select_for_update(of=("self",), skip_locked=True).select_related(
        "destination", "project"
    )
    open_rows = rows.filter(destination_id=destination_id, due_at__lte=now, state__in=("waiting", "sending"))
    for row in open_rows.order_by("due_at", "id")[:2]:
        if row.state == DeliveryState.WAITING or (row.claimed_until and row.claimed_until <= now):
            # Who got the destination's lock late may find that the one before has just claimed another message.
            busy = AlertDelivery.objects.filter(
                destination_id=destination_id, state=DeliveryState.SENDING, claimed_until__gt=now
            )
            return None if busy.exists() else row
    return None


def _claim(message: AlertDelivery) -> Job:
    entries = list(AlertTransition.objects.filter(items__delivery=message).order_by("id"))
    if not message.payload:
        now, project = timezone.now(), message.project.slug
        if message.is_test:
            message.payload = rendering.test_payload(
                message.public_id, project, message.destination.name, now
            )
            message.title = "Test message"
        else:
            outbox.bring_up_to_date(entries)
            message.payload = rendering.payload(message.public_id, project, entries, now)
            message.title = rendering.title_of(entries)[:300]
    if message.tries_left <= 0:
        message.tries_left = TRIES
    message.state, message.claim = DeliveryState.SENDING, uuid.uuid4()
    message.claimed_until = timezone.now() + CLAIM
    message.save(update_fields=["payload", "title", "tries_left", "state", "claim", "claimed_until"])
    destination = message.destination
    return Job(
        message.pk,
        message.public_id,
        message.claim,
        destination.pk,
        destination.kind,
        destination.address,
        tuple(destination.signing_secrets),
        message.payload,
        tuple(entry.transition for entry in entries),
    )


def attempt(job: Job) -> Outcome:
    """Send one message; touches no database and raises nothing."""
    began = time.monotonic()

    def spent() -> int:
        return round((time.monotonic() - began) * 1000)

    try:
        if job.kind == DestinationKind.WEBHOOK:
            answer = outgoing_http.post(
                job.address, webhook_headers(job, int(time.time())), job.payload.encode()
            )
            return _judge(answer, spent())
        data = orjson.loads(job.payload)["data"]
        notifiers.notify(
            job.address,
            data["title"],
            data["text"],
            is_good_news=bool(job.transitions) and rendering.is_good_news(job.transitions),
        )
        return Outcome(True, spent())
    except (outgoing_http.Refused, outgoing_http.Unreachable) as error:
        return Outcome(False, spent(), problem=str(error)[:300])
    except Exception as error:  # the loop that waits for this answer must get one
        log.exception("alert_attempt_failed", delivery=job.public_id)
        return Outcome(False, spent(), problem=f"Failed inside: {type(error).__name__}.")


def webhook_headers(job: Job, timestamp: int) -> dict[str, str]:
    """Return the headers of one attempt, signed after Standard Webhooks with every active secret.

    Parameters
    ----------
    timestamp
        Unix seconds of this attempt; the id stays the same over all attempts.
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


def _judge(answer: outgoing_http.Answer, duration_ms: int) -> Outcome:
    status = answer.status
    is_success = 200 <= status < 300
    problem = ""
    if 300 <= status < 400:
        problem = f"Answered {status}; redirects are not followed."
    elif not is_success:
        problem = f"Answered {status}."
    body = answer.body[:KEPT_ANSWER_BYTES].decode("utf-8", "replace").replace("\x00", "␀")
    retry_after = _retry_after(answer.headers.get("retry-after", "")) if status in (429, 503) else None
    return Outcome(is_success, duration_ms, status, problem, body, retry_after, is_gone=status == 410)


def _retry_after(text: str) -> timedelta | None:
    """Read ``Retry-After``: seconds or a date; at most a day counts."""
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
def settle(job: Job, outcome: Outcome) -> bool:
    """Note what came of an attempt, if the claim still holds.

    Returns
    -------
    bool
        False when another sender has taken the message over meanwhile, or it is gone; then nothing is noted.
    """
    # Destination first, as in claiming, so that two senders never wait for each other.
    destination = (
        AlertDestination.objects.select_for_update(no_key=True).filter(pk=job.destination_id).first()
    )
    message = AlertDelivery.objects.select_for_update().filter(pk=job.delivery_id, claim=job.claim).first()
    if destination is None or message is None:
        return False
    now = timezone.now()
    message.attempt_count += 1
    message.tries_left -= 1
    message.claim = message.claimed_until = None
    AlertAttempt.objects.create(
        delivery=message,
        number=message.attempt_count,
        at=now - timedelta(milliseconds=outcome.duration_ms),
        duration_ms=outcome.duration_ms,
        is_success=outcome.is_success,
        status=outcome.status,
        problem=outcome.problem,
        answer=outcome.answer,
    )
    if outcome.is_success:
        message.state, message.finished_at = DeliveryState.DELIVERED, now
    elif message.is_test or message.tries_left <= 0 or outcome.is_gone:
        message.state, message.finished_at = DeliveryState.FAILED, now
    else:
        message.state = DeliveryState.WAITING
        message.due_at = now + _wait(message.tries_left, outcome)
    message.save()
    _note_on_destination(destination, outcome, now)
    return True


def _wait(tries_left: int, outcome: Outcome) -> timedelta:
    seconds = RETRY_SECONDS[TRIES - 1 - tries_left]
    # Spread, so that what failed together does not come back together.
    wait = timedelta(seconds=seconds * random.uniform(1.0, 1.1))  # noqa: S311
    return max(wait, outcome.retry_after) if outcome.retry_after else wait


def _note_on_destination(destination: AlertDestination, outcome: Outcome, now: datetime) -> None:
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
            destination.last_problem = "The receiver answered 410 Gone, so nothing more is sent to it."
            audit.record(
                audit.SYSTEM,
                "destination.disable",
                destination.public_id,
                project_id=destination.project_id,
                after={"is_enabled": False, "reason": "the receiver answered 410 Gone"},
            )
    destination.save()


def send_now(delivery_id: int) -> Outcome | None:
    """Send one message in this thread, past the breaker; for the test button.

    Returns
    -------
    Outcome or None
        None when another sender has it.
    """
    with transaction.atomic():
        waiting = (
            AlertDelivery.objects.filter(pk=delivery_id).values_list("destination_id", flat=True).first()
        )
        if waiting is None:
            return None
        AlertDestination.objects.select_for_update(no_key=True).get(pk=waiting)
        message = (
            AlertDelivery.objects.select_for_update(of=("self",))
            .select_related("destination", "project")
            .filter(pk=delivery_id, state=DeliveryState.WAITING)
            .first()
        )
        job = _claim(message) if message else None
    if job is None:
        return None
    outcome = attempt(job)
    settle(job, outcome)
    return outcome
