"""A worker that no longer takes tasks is noticed, and only then."""

import uuid

import pytest
import redis

from detection import jobs
from detection.tasks.watchdog import Consumption


@pytest.fixture
def put_task(settings):
    """Put something on a queue of tasks that no other test uses; the queue is deleted in the end."""
    settings.CELERY_TASK_DEFAULT_QUEUE = f"watched-{uuid.uuid4()}"
    prefix = settings.CELERY_BROKER_TRANSPORT_OPTIONS["global_keyprefix"]
    queue = f"{prefix}{settings.CELERY_TASK_DEFAULT_QUEUE}"
    with redis.Redis.from_url(settings.CELERY_BROKER_URL) as broker:
        yield lambda: broker.rpush(queue, "{}")
        broker.delete(queue)


@pytest.mark.promise("REL-05")
@pytest.mark.servers
def test_a_worker_is_deaf_when_tasks_wait_at_two_looks_and_none_runs(put_task):
    worker = Consumption(deaf_seconds=0)
    assert not worker.is_deaf()
    put_task()
    assert jobs.waiting_tasks() == 1
    assert not worker.is_deaf()
    assert worker.is_deaf()


def test_a_worker_with_a_task_or_without_a_broker_is_not_deaf(put_task, settings):
    worker = Consumption(deaf_seconds=0)
    put_task()
    worker.is_deaf()
    worker.start_task()
    assert not worker.is_deaf()
    worker.end_task()
    assert not worker.is_deaf()
    settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/0"
    assert not worker.is_deaf()
    assert not worker.is_deaf()
