"""Alerts go out and calls are counted by a thread of the worker, without a broker."""

from __future__ import annotations

import threading

from detection.tasks import alerts
from detection.tasks.periodic import Periodic
from tests.support.patience import PATIENCE_SECONDS


def test_a_turn_that_fails_is_followed_by_the_next_one(db):
    turns, enough = [], threading.Event()

    def work():
        turns.append(1)
        if len(turns) == 3:
            enough.set()
        raise RuntimeError("a bad turn")

    thread = Periodic("test", 0.01, work)
    thread.start()
    assert enough.wait(PATIENCE_SECONDS)
    thread.stop()
    assert not thread._thread.is_alive()


def test_a_worker_starts_the_threads_and_ends_them():
    alerts._start()
    names = {thread.name for thread in threading.enumerate()}
    assert {"alerts", "reminders", "statistics"} <= names
    alerts._stop()
    assert not any(thread._thread.is_alive() for thread in alerts._threads)
