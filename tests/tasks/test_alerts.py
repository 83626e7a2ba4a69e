"""Alerts go out and calls are counted by a thread of the worker, without a broker."""

from __future__ import annotations

import threading

from detection.tasks import alerts
from detection.tasks.evaluation_queue import EvaluationQueue
from detection.tasks.periodic import Periodic, stop_all, stop_with_worker
from tests.support.patience import PATIENCE_SECONDS

NAMES = {"alerts", "reminders", "statistics"}


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


def test_work_that_fails_does_not_keep_the_other_work_of_its_thread_from_being_done(db):
    enough = threading.Event()

    def fail():
        raise RuntimeError("bad work")

    thread = Periodic("test", 0.01, fail, enough.set)
    thread.start()
    assert enough.wait(PATIENCE_SECONDS)
    thread.stop()


def test_a_worker_starts_the_threads_and_ends_them():
    alerts._start()
    names = {thread.name for thread in threading.enumerate()}
    assert names >= NAMES
    stop_all()
    assert NAMES.isdisjoint(thread.name for thread in threading.enumerate())


def test_all_threads_of_a_worker_are_told_to_stop_before_one_is_waited_for_and_have_one_time():
    """While the database is away, each of them waits for it: one after the other they would take minutes."""
    done: list[object] = []

    class Stuck:
        def stop_soon(self):
            done.append("told")

        def stop(self, until=None):
            done.append(until)

    queue = EvaluationQueue()
    queue.start(2)
    for _ in range(3):
        stop_with_worker(Stuck())
    stop_all()
    assert done[:3] == ["told"] * 3
    assert len({*done[3:]}) == 1
    assert None not in done
    assert len(done) == 6
    assert not any(thread.is_alive() for thread in queue._threads)
    stop_all()
    assert len(done) == 6, "what has stopped is forgotten"
