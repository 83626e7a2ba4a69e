"""Which waiting request is answered next."""

import pytest

from loopguard_site.front import guard_use, turns
from loopguard_site.front.traffic import Traffic
from loopguard_site.front.turns import Turns, WaitingRequest

FLOOD, QUIET = ("flood", "k1"), ("quiet", "k2")


class Clock:
    """The time that threads spend, moved by the test."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def put(waiting, payer, traffic=Traffic.BULK, size=0, count=1):
    requests = [WaitingRequest(traffic, payer, size) for _ in range(count)]
    return [request for request in requests if waiting.put(request)]


def serve(waiting, clock, count, cost):
    """Answer so many requests in one thread; the payers in their order."""
    order = []
    for _ in range(count):
        request = waiting.take()
        clock.now += cost(request)
        waiting.done(request)
        order.append(request.payer)
    return order


@pytest.mark.promise("REL-18")
def test_a_project_that_comes_later_does_not_wait_behind_a_flood(clock):
    waiting = Turns(2, clock)
    put(waiting, FLOOD, count=60)
    serve(waiting, clock, 5, lambda _: 0.1)
    put(waiting, QUIET, count=3)
    assert serve(waiting, clock, 6, lambda _: 0.1).count(QUIET) == 3


@pytest.mark.promise("SEC-23")
def test_a_request_weighs_the_time_that_it_takes(clock):
    waiting = Turns(1, clock)
    put(waiting, FLOOD, count=60)
    put(waiting, QUIET, count=60)
    order = serve(waiting, clock, 60, lambda request: 0.5 if request.payer == FLOOD else 0.05)
    assert 4 <= order.count(FLOOD) <= 7


def test_one_who_was_idle_has_no_credit(clock):
    waiting = Turns(1, clock)
    put(waiting, FLOOD, count=60)
    put(waiting, QUIET)
    serve(waiting, clock, 20, lambda _: 1)
    put(waiting, QUIET, count=30)
    assert serve(waiting, clock, 20, lambda _: 1).count(QUIET) in (10, 11)


def test_the_keys_of_a_project_take_turns(clock):
    waiting = Turns(1, clock)
    put(waiting, ("one", "a"), count=10)
    put(waiting, ("one", "b"), count=10)
    assert serve(waiting, clock, 4, lambda _: 1) == [("one", "a"), ("one", "b")] * 2


def test_the_guard_is_answered_before_bulk_traffic_and_pages(clock):
    waiting = Turns(4, clock)
    put(waiting, FLOOD, count=9)
    put(waiting, FLOOD, Traffic.INTERACTIVE, count=9)
    others = [waiting.take() for _ in range(3)]
    assert sum(request.traffic == Traffic.BULK for request in others) <= 2
    put(waiting, QUIET, Traffic.GUARD)
    assert waiting.take().payer == QUIET


def test_bulk_traffic_gets_a_thread_however_many_guard_requests_wait(clock):
    waiting = Turns(3, clock)
    put(waiting, FLOOD, Traffic.GUARD, count=9)
    put(waiting, QUIET, Traffic.BULK)
    assert QUIET in [waiting.take().payer for _ in range(2)]


def test_bulk_traffic_has_one_thread_while_the_guard_is_used(clock):
    waiting = Turns(5, clock)
    put(waiting, QUIET, Traffic.GUARD)
    put(waiting, FLOOD, count=3)
    assert [waiting.take().traffic for _ in range(2)] == [Traffic.GUARD, Traffic.BULK]
    assert waiting._next() is None
    clock.now += guard_use.GUARDED_SECONDS
    assert waiting.take().traffic == Traffic.BULK
    assert waiting._next() is None


@pytest.mark.parametrize(
    ("size", "seconds", "rest"),
    [
        (turns.FULL_REST_BYTES, 0.1, 0.1),
        (2 * turns.FULL_REST_BYTES, 0.3, 0.3),
        (turns.FULL_REST_BYTES // 2, 0.1, 0.05),
        (turns.FULL_REST_BYTES, 9.0, turns.MAX_REST_SECONDS),
    ],
)
def test_bulk_traffic_rests_while_the_guard_is_used(clock, size, seconds, rest):
    waiting = Turns(5, clock)
    put(waiting, FLOOD, size=size, count=3)
    first = waiting.take()
    clock.now += seconds
    waiting.done(first)
    put(waiting, QUIET, Traffic.GUARD)
    waiting.done(waiting.take())
    assert waiting._next() is None
    clock.now += rest - 0.01
    assert waiting._next() is None
    clock.now += 0.02
    assert waiting.take().traffic == Traffic.BULK


def test_a_thread_that_waits_takes_a_bulk_request_after_the_rest():
    waiting = Turns(5)
    put(waiting, QUIET, Traffic.GUARD)
    waiting.done(waiting.take())
    put(waiting, FLOOD, size=turns.FULL_REST_BYTES, count=2)
    waiting.done(waiting.take())
    assert waiting.take().payer == FLOOD


def test_processes_that_share_a_folder_know_of_each_others_guard(clock, tmp_path):
    first, second = (Turns(5, clock, guard_use.GuardUse(tmp_path, clock)) for _ in range(2))
    put(first, QUIET, Traffic.GUARD)
    put(second, FLOOD, count=2)
    assert second.take().payer == FLOOD
    assert second._next() is None


def test_a_flood_is_turned_away_and_others_are_not(clock):
    waiting = Turns(1, clock)
    assert len(put(waiting, FLOOD, count=200)) == turns.MAX_WAITING_PER_PAYER
    assert put(waiting, QUIET)
    assert not put(waiting, ("large", "k"), size=turns.MAX_WAITING_BYTES_PER_PAYER + 1)


def test_a_request_past_its_deadline_leaves_and_one_that_runs_does_not(clock):
    waiting = Turns(1, clock)
    first, second = put(waiting, FLOOD, count=2)
    assert waiting.take() is first
    assert not waiting.leave(first)
    assert waiting.leave(second)
    waiting.done(first)
    put(waiting, QUIET)
    assert waiting.take().payer == QUIET
