"""A quiet tenant's guard beside another tenant that floods the same installation."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks import requests
from benchmarks.flood import MEASURED, Flood
from benchmarks.http import wait_for_workers
from benchmarks.load import Connection
from benchmarks.report import Figure, percentile
from benchmarks.stack import ROOT, Stack

CLIENTS, REQUESTS_PER_SECOND = 4, 10
"""The quiet tenant: so many connections, so many requests a second on each."""
TURNS = 3
TIMES_CAPACITY = 10
QUIET_SECONDS = 90.0
CONNECTIONS = 400
"""Of the flood: more than may wait."""
CAPACITY_CLIENTS, CAPACITY_SECONDS = 4, 5.0


def run(stack: Stack, seconds: float) -> list[Figure]:
    """Measure the quiet tenant alone and beside the flood, by turns."""
    first = _flood(stack.url, stack.create_key("capacity"), math.inf, CAPACITY_SECONDS, CAPACITY_CLIENTS)
    _wait_for_quiet(stack)
    capacity = first.accepted / first.seconds
    flooding = stack.create_key("flood")
    _ask(stack, 0, 1.0)
    alone: list[float] = []
    beside: list[float] = []
    sent = Flood()
    for turn in range(TURNS):
        alone += _ask(stack, 10 * turn + 1, seconds / TURNS)
        with ThreadPoolExecutor(1) as pool:
            rate, flooded_seconds = TIMES_CAPACITY * capacity, seconds / TURNS + 2
            flood = pool.submit(_flood, stack.url, flooding, rate, flooded_seconds, CONNECTIONS)
            time.sleep(1)
            beside += _ask(stack, 10 * turn + 5, seconds / TURNS)
            sent.add(flood.result())
        _wait_for_quiet(stack)
    offered = sent.offered / sent.seconds
    p99 = percentile(alone, 0.99), percentile(beside, 0.99)
    statuses = ", ".join(f"{status}: {number}" for status, number in sorted(sent.statuses.items()))
    print(
        f"batches of the flood by status: {statuses}; due without a free connection: {sent.missed}",
        flush=True,
    )
    return [
        Figure("capacity for events, one tenant", capacity * MEASURED, "/s"),
        Figure("offered by the flooding tenant", offered * MEASURED, "/s"),
        Figure(
            "offered against capacity", offered / capacity, "x", TIMES_CAPACITY * 0.95, more_is_better=True
        ),
        Figure("accepted from it", sent.accepted / sent.seconds * MEASURED, "/s"),
        Figure("rejected", sent.rejected / sent.seconds * MEASURED, "/s"),
        Figure("processor time of the flood's own process", sent.cpu_seconds / sent.seconds, "cores"),
        Figure("quiet tenant's guard alone, p50", percentile(alone, 0.5) * 1000, "ms"),
        Figure("quiet tenant's guard alone, p99", p99[0] * 1000, "ms"),
        Figure("quiet tenant's guard beside the flood, p50", percentile(beside, 0.5) * 1000, "ms"),
        Figure("quiet tenant's guard beside the flood, p99", p99[1] * 1000, "ms"),
        Figure("p99 beside the flood against alone", p99[1] / p99[0], "x", 3, 2),
    ]


def _flood(url: str, key: str, per_second: float, seconds: float, connections: int) -> Flood:
    """Run the flood in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.flood",
        url,
        key,
        *map(str, (per_second, seconds, connections)),
    ]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=seconds + 30, check=True
    )
    return Flood.read(done.stdout)


def _wait_for_quiet(stack: Stack) -> None:
    """Wait until the workers have evaluated what the flood left: their work would make the tenant alone look slow."""
    with stack.connect() as database:
        wait_for_workers(database, QUIET_SECONDS)
    time.sleep(2)


def _ask(stack: Stack, offset: int, seconds: float) -> list[float]:
    """Send the quiet tenant's guard requests at their pace; return the times to the response."""
    waited: list[float] = []

    def client(number: int) -> None:
        connection = Connection(stack.url, stack.headers)
        started = due = time.perf_counter()
        asked = 0
        while due < started + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            status, _ = connection.send("POST", *requests.guard(1000 * offset + number, asked))
            if status != 200:
                raise RuntimeError(f"the quiet tenant was answered {status}")
            waited.append(time.perf_counter() - began)
            asked += 1
            due = max(due + 1 / REQUESTS_PER_SECOND, time.perf_counter())
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return waited
