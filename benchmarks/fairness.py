"""A quiet tenant's guard beside another tenant that floods the same installation."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from benchmarks import requests
from benchmarks.flood import MEASURED, Flood
from benchmarks.load import Connection
from benchmarks.report import Figure, percentile
from benchmarks.stack import ROOT, Stack

CLIENTS, REQUESTS_PER_SECOND = 4, 10
"""The quiet tenant: so many connections, so many requests a second on each."""
TURNS = 3
TIMES_CAPACITY = 10


def run(stack: Stack, seconds: float) -> list[Figure]:
    """Measure the quiet tenant alone and beside the flood, by turns."""
    capacity = _capacity(stack)
    flooding = stack.create_key("flood")
    _ask(stack, 0, 1.0)
    alone: list[float] = []
    beside: list[float] = []
    offered = accepted = 0
    for turn in range(TURNS):
        alone += _ask(stack, 10 * turn + 1, seconds / TURNS)
        rate = TIMES_CAPACITY * capacity / MEASURED
        command = [
            sys.executable,
            "-m",
            "benchmarks.flood",
            stack.url,
            flooding,
            str(rate),
            str(seconds / TURNS + 2),
        ]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as flood:
            time.sleep(1)
            beside += _ask(stack, 10 * turn + 5, seconds / TURNS)
            text = flood.communicate()[0]
        sent = Flood.read(text)
        offered += sent.offered
        accepted += sent.accepted
        _wait_for_quiet()
    flooded_seconds = TURNS * (seconds / TURNS + 2)
    return [
        Figure("capacity for events, one tenant", capacity, "/s"),
        Figure("offered by the flooding tenant", offered * MEASURED / flooded_seconds, "/s"),
        Figure("offered against capacity", offered * MEASURED / flooded_seconds / capacity, "x"),
        Figure("accepted from it", accepted * MEASURED / flooded_seconds, "/s"),
        Figure("quiet tenant's guard alone, p50", percentile(alone, 0.5) * 1000, "ms"),
        Figure("quiet tenant's guard alone, p99", percentile(alone, 0.99) * 1000, "ms"),
        Figure("quiet tenant's guard beside the flood, p50", percentile(beside, 0.5) * 1000, "ms"),
        Figure("quiet tenant's guard beside the flood, p99", percentile(beside, 0.99) * 1000, "ms"),
        Figure(
            "p99 beside the flood against alone",
            percentile(beside, 0.99) / percentile(alone, 0.99),
            "x",
            3,
            2,
        ),
    ]


def _capacity(stack: Stack) -> float:
    """Return the events a second that one tenant gets accepted without pacing."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.flood",
        stack.url,
        stack.create_key("capacity"),
        "inf",
        "4",
        "4",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    _wait_for_quiet()
    return Flood.read(done.stdout).accepted * MEASURED / 4


def _wait_for_quiet() -> None:
    time.sleep(3)


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
