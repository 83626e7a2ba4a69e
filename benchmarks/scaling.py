"""What each added process brings: guard and events with one to `MOST` processes of `web` and `worker` against one PostgreSQL.

Every process of `web` has a port of its own, as on machines of their own, and clients of its own. On one machine all
processes share its cores, so the rates show scaling only where there are more cores than processes; the processor time
of each kind of process for a thousand calls does not depend on that, and says how many cores of `web` and `worker` one
core of the database bears.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from benchmarks import requests
from benchmarks.load import Measured, Request, keep_asking
from benchmarks.report import Figure
from benchmarks.stack import Stack

MOST = 3
GUARD_CLIENTS = 16
EVENT_CLIENTS = 4
EVENTS_PER_REQUEST = 100
SECONDS_PER_CALL = 10
"""An agent makes a call every ten seconds; for the number of agents that one core bears."""
CATCH_UP_SECONDS = 300.0
_BEHIND = "SELECT count(*) FROM detection_session WHERE evaluated_seq < last_seq"
_Usage = dict[str, float]


def run(stack: Stack, seconds: float) -> list[Figure]:
    """Measure with one process of each kind, then with one more each time."""
    return [*guard(stack, seconds), *events(stack, seconds)]


def guard(stack: Stack, seconds: float) -> list[Figure]:
    """Send guard requests to one process of `web`, then to two, and so on; each has the same number of clients in all."""
    figures = []
    for number in range(1, MOST + 1):
        urls = stack.web_urls(number)
        offset = number * 100_000

        def request(client: int, count: int, offset: int = offset) -> Request:
            return requests.guard(client + offset, count)

        measured, usage = _measure(stack, urls, request, clients=GUARD_CLIENTS, seconds=seconds)
        if measured.refused:
            raise RuntimeError(f"{measured.refused} guard requests were refused")
        figures.append(Figure(f"guard, {_of(number, 'web')}", measured.per_second, "/s"))
        figures.append(Figure(f"guard, {_of(number, 'web')}, p99", measured.milliseconds(0.99), "ms"))
        figures += _costs(f"guard, {_of(number, 'web')}", usage, len(measured.latencies))
    return figures


def events(stack: Stack, seconds: float) -> list[Figure]:
    """Send batches until the time is over, and wait until all are evaluated, with one worker, then with two, and so on."""
    figures = []
    for number in range(1, MOST + 1):
        stack.keep_workers(number)
        offset = number * 100_000

        def request(client: int, count: int, offset: int = offset) -> Request:
            return requests.events(client + offset, count, per_request=EVENTS_PER_REQUEST)

        before, began = stack.processor_seconds(), time.perf_counter()
        measured = keep_asking(stack.url, stack.headers, request, clients=EVENT_CLIENTS, seconds=seconds)
        _wait_until_evaluated(stack)
        took = time.perf_counter() - began
        usage = _difference(stack.processor_seconds(), before)
        count = len(measured.latencies) * EVENTS_PER_REQUEST
        figures.append(Figure(f"events, {_of(number, 'worker')}, stored and evaluated", count / took, "/s"))
        figures += _costs(f"events, {_of(number, 'worker')}", usage, count // 2)
    return figures


def _measure(
    stack: Stack, urls: list[str], request: Callable[[int, int], Request], *, clients: int, seconds: float
) -> tuple[Measured, _Usage]:
    """Send requests to several processes at the same time; return their results together, and the processor time of all processes."""
    total, before = Measured(), stack.processor_seconds()
    share = max(1, clients // len(urls))

    def ask(at: int) -> Measured:
        return keep_asking(
            urls[at],
            stack.headers,
            lambda client, number: request(client + at * 1000, number),
            clients=share,
            seconds=seconds,
        )

    with ThreadPoolExecutor(len(urls)) as pool:
        for measured in pool.map(ask, range(len(urls))):
            total.latencies += measured.latencies
            total.refused += measured.refused
            total.seconds = max(total.seconds, measured.seconds)
    return total, _difference(stack.processor_seconds(), before)


def _costs(name: str, usage: Mapping[str, float], calls: int) -> Iterable[Figure]:
    """Return the processor time of a thousand calls by kind of process, and what follows from it."""
    for kind, seconds in usage.items():
        yield Figure(f"{name}: {kind}, processor time per 1,000 calls", 1000 * seconds / calls, "s")
    database = usage["postgresql"]
    if database:
        own = sum(seconds for kind, seconds in usage.items() if kind not in ("postgresql", "broker"))
        yield Figure(f"{name}: cores of LoopGuard for one of the database", own / database, "")
        yield Figure(f"{name}: agents for one core of the database", calls / database * SECONDS_PER_CALL, "")


def _wait_until_evaluated(stack: Stack) -> None:
    deadline = time.monotonic() + CATCH_UP_SECONDS
    with stack.connect() as database:
        while time.monotonic() < deadline:
            row = database.execute(_BEHIND).fetchone()
            if row is None or not row[0]:
                return
            time.sleep(0.05)
    raise TimeoutError("the workers did not catch up")


def _difference(now: _Usage, before: _Usage) -> _Usage:
    return {kind: now[kind] - before.get(kind, 0.0) for kind in now}


def _of(number: int, kind: str) -> str:
    return f"{number} {kind}" if number == 1 else f"{number} {kind}s"
