import threading

import pytest

from detection import background_publisher
from detection.background_publisher import Doorbell


@pytest.fixture
def held():
    """A bell whose thread is busy until the gate is opened, and what it has sent."""
    bell, gate, sent, done = Doorbell("test"), threading.Event(), [], threading.Event()
    busy = threading.Event()

    def first(_):
        busy.set()
        gate.wait(5)

    bell.ring("first", first)
    busy.wait(5)

    def opened():
        gate.set()
        for _ in range(2):  # the second one stands behind whatever the first one let pass
            done.clear()
            bell.ring("last", lambda _: done.set())
            assert done.wait(5)
        return sent

    return bell, sent, opened


def test_news_for_one_receiver_leave_together_and_equal_ones_once(held):
    bell, sent, opened = held
    for number in (1, 2, 1, 3):
        bell.ring("a", sent.append, number)
    bell.ring("b", sent.append, 9)

    assert opened() == [[1, 2, 3], [9]]


def test_a_receiver_with_much_news_does_not_hold_up_the_others(held):
    bell, sent, opened = held
    bell.ring("a", sent.append, *range(background_publisher.MAX_TOGETHER + 1))
    bell.ring("b", sent.append, "b")

    assert [len(news) for news in opened()] == [background_publisher.MAX_TOGETHER, 1, 1]
    assert sent[1] == ["b"]


def test_what_cannot_be_sent_is_counted_and_stops_nobody(held):
    bell, sent, opened = held

    def broken(_):
        raise ConnectionError("no broker")

    bell.ring("a", broken, 1)
    bell.ring("b", sent.append, 2)

    assert opened() == [[2]]
    assert bell.failed == 1


def test_what_waits_is_bounded(held, monkeypatch):
    bell, sent, opened = held
    monkeypatch.setattr(background_publisher, "MAX_WAITING", 3)
    bell.ring("a", sent.append, 1, 2, 3)
    bell.ring("a", sent.append, 4)

    assert opened() == [[1, 2, 3]]
    assert bell.dropped == 1
