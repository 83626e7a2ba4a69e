"""The thread that recovers lost judge tasks starts and stops with its worker."""

import threading

from detection.tasks import judge
from detection.tasks.periodic import stop_all


def names():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("judge")]


def test_a_worker_starts_the_thread_and_ends_it():
    judge._start()
    assert names() == ["judge"]
    stop_all()
    assert names() == []
