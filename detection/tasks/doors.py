"""The tasks by name."""

from __future__ import annotations

from celery import shared_task

from detection import jobs
from detection.services import evaluation, heartbeats, retention


@shared_task(name=jobs.EVALUATE)
def evaluate(session_id: int) -> None:
    """Fold what a session has received; a session that is gone or done costs one query."""
    evaluation.evaluate(session_id)
    heartbeats.note("worker")


@shared_task(name=jobs.SWEEP)
def sweep() -> None:
    """Sweep on the schedule: what arrives here came all the way from beat through the broker to a worker."""
    evaluation.sweep()
    heartbeats.note("beat")


@shared_task(name=jobs.HOUSEKEEPING)
def housekeeping() -> None:
    """Tidy up."""
    retention.housekeeping()
    heartbeats.note("housekeeping")
