"""The tasks of evaluation and housekeeping."""

from __future__ import annotations

import structlog
from celery import shared_task
from django.db import DatabaseError

from detection import jobs
from detection.services.maintenance import heartbeats, retention
from detection.services.sessions import evaluation

log = structlog.get_logger(__name__)


@shared_task(name=jobs.EVALUATE)
def evaluate(session_ids: list[int]) -> None:
    """Evaluate sessions. One without new events costs one query; one that fails is left to the sweeper."""
    for session_id in session_ids:
        try:
            evaluation.evaluate(session_id)
        except DatabaseError:
            log.exception("evaluation_failed", session_id=session_id)
    heartbeats.note("worker")


@shared_task(name=jobs.SWEEP)
def sweep() -> None:
    """Sweep on schedule; also shows that tasks travel from beat through the broker to a worker."""
    evaluation.sweep()
    heartbeats.note("beat")


@shared_task(name=jobs.HOUSEKEEPING)
def housekeeping() -> None:
    """Run housekeeping."""
    retention.housekeeping()
    heartbeats.note("housekeeping")
