"""The tasks of evaluation and housekeeping."""

from __future__ import annotations

from celery import shared_task

from detection import jobs
from detection.services.maintenance import outside_signal
from detection.services.maintenance.heartbeats import heartbeats
from detection.services.projects import reports
from detection.services.retention import retention
from detection.services.sessions import evaluation
from detection.tasks.evaluation_queue import evaluation_queue


@shared_task(name=jobs.EVALUATE)
def evaluate(project_id: int, session_ids: list[int], *_later: object) -> None:
    """Queue sessions of a project for the threads of this worker; a later version may send more arguments."""
    evaluation_queue.add(project_id, session_ids)


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


@shared_task(name=jobs.SIGNAL)
def signal() -> None:
    """Tell the operator's receiver that LoopGuard works."""
    outside_signal.send()


@shared_task(name=jobs.WEEKLY_REPORTS)
def weekly_reports() -> None:
    """Make the reports of the week that is over, and hand them to the routes that ask for them."""
    reports.send_weekly()
