import threading
from typing import Any

import pytest

from detection import background_publisher
from detection.background_publisher import BackgroundPublisher
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def busy():
    """A publisher with room for 300 items whose thread is busy until the gate is opened, and what it has sent."""
    publisher, gate = BackgroundPublisher("test", max_queued=300), threading.Event()
    sent: list[Any] = []
    is_busy, done = threading.Event(), threading.Event()

    def wait(_):
        is_busy.set()
        gate.wait(PATIENCE_SECONDS)

    publisher.enqueue("first", wait)
    assert is_busy.wait(PATIENCE_SECONDS)

    def open_gate():
        gate.set()
        for _ in range(2):  # the second one waits behind everything that was queued before the first
            done.clear()
            publisher.enqueue("last", lambda _: done.set())
            assert done.wait(PATIENCE_SECONDS)
        return sent

    return publisher, sent, open_gate


def test_items_for_one_receiver_are_sent_together_and_equal_ones_once(busy):
    publisher, sent, open_gate = busy
    for number in (1, 2, 1, 3):
        publisher.enqueue("a", sent.append, number)
    publisher.enqueue("b", sent.append, 9)

    assert open_gate() == [[1, 2, 3], [9]]


def test_a_receiver_with_many_items_does_not_delay_the_others(busy):
    publisher, sent, open_gate = busy
    publisher.enqueue("a", sent.append, *range(background_publisher.MAX_BATCH + 1))
    publisher.enqueue("b", sent.append, "b")

    assert [len(batch) for batch in open_gate()] == [background_publisher.MAX_BATCH, 1, 1]
    assert sent[1] == ["b"]


@pytest.mark.promise("REL-02")
def test_a_batch_that_cannot_be_sent_is_counted_and_delays_nobody(busy):
    publisher, sent, open_gate = busy

    def broken(_):
        raise ConnectionError("no broker")

    publisher.enqueue("a", broken, 1)
    publisher.enqueue("b", sent.append, 2)

    assert open_gate() == [[2]]
    assert publisher.failed == 1


def test_items_beyond_the_limit_are_dropped_and_counted(busy):
    publisher, sent, open_gate = busy
    publisher.enqueue("a", sent.append, *range(300))
    publisher.enqueue("a", sent.append, 300)

    assert sum(len(batch) for batch in open_gate()) == 300
    assert publisher.dropped == 1


def test_receivers_without_items_are_bounded_too(busy):
    publisher, sent, _ = busy
    for number in range(publisher.max_queued + 2):
        publisher.enqueue(number, sent.append)

    assert publisher.dropped == 2


def test_a_receiver_whose_items_are_all_dropped_is_not_called(busy):
    publisher, sent, open_gate = busy
    publisher.enqueue("a", sent.append, *range(publisher.max_queued - 1))
    publisher.enqueue("b", sent.append, "b", "c")

    assert publisher.dropped == 2
    assert [] not in open_gate()
