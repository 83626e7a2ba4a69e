"""Names of the Celery tasks, and the only code that enqueues them: after commit, in the background."""

from __future__ import annotations

import redis
from celery import current_app
from django.conf import settings
from django.db import transaction

from detection.background_publisher import BackgroundPublisher

EVALUATE, SWEEP, HOUSEKEEPING = "detection.evaluate", "detection.sweep", "detection.housekeeping"
JUDGE, CLOSE_APPROVALS = "detection.judge", "detection.close_approvals"
WEEKLY_REPORTS = "detection.weekly_reports"
SIGNAL = "detection.signal"
SESSIONS_PER_TASK = 20
"""Sessions per task: enough to make sending cheap, few enough for several workers to share the work."""
BROKER_TIMEOUT_SECONDS = 0.5
publisher = BackgroundPublisher("jobs", pause_seconds=0.005)


def _send(name: str, *arguments: object) -> None:
    # One connection attempt and no retry: the sweeper covers what could not be sent.
    current_app.send_task(name, args=arguments, retry=False, ignore_result=True)


def waiting_tasks() -> int:
    """Return how many tasks wait in the broker.

    Raises
    ------
    redis.RedisError
        The broker does not answer within `BROKER_TIMEOUT_SECONDS`.
    """
    with redis.Redis.from_url(
        settings.CELERY_BROKER_URL,
        socket_connect_timeout=BROKER_TIMEOUT_SECONDS,
        socket_timeout=BROKER_TIMEOUT_SECONDS,
    ) as client:
        prefix = settings.CELERY_BROKER_TRANSPORT_OPTIONS["global_keyprefix"]
        return int(client.llen(f"{prefix}{settings.CELERY_TASK_DEFAULT_QUEUE}"))


def evaluate_after_commit(project_id: int, session_ids: list[int]) -> None:
    """Enqueue the evaluation of a project's sessions once the current transaction is committed."""

    def send(session_ids: list[int]) -> None:
        for first in range(0, len(session_ids), SESSIONS_PER_TASK):
            _send(EVALUATE, project_id, session_ids[first : first + SESSIONS_PER_TASK])

    transaction.on_commit(lambda: publisher.enqueue((EVALUATE, project_id), send, *session_ids), robust=True)


def judge_after_commit(project_id: int, approval_id: str) -> None:
    """Enqueue the judge for an approval of a project once the current transaction is committed.

    Parameters
    ----------
    approval_id
        Public id. If the task is lost, a worker finds the approval within seconds.
    """
    transaction.on_commit(
        lambda: publisher.enqueue((JUDGE, approval_id), lambda _: _send(JUDGE, approval_id, project_id)),
        robust=True,
    )
