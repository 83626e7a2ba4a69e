"""Guard and events while a what-if replays a month: what the replay takes from them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks import history, requests
from benchmarks.load import Connection, Measured, Request, keep_asking
from benchmarks.report import Figure
from benchmarks.stack import Stack

CHANGE: Final = {"scope": "project", "days": 30, "values": {"max_repeats": 6}}
STARTS_WITHIN: Final = 30.0


def run(stack: Stack, seconds: float) -> Iterator[Figure]:
    """Fill the stack with a large history, then measure alone and beside the replay."""
    history.fill(stack)
    yield from measure(stack, seconds)


def measure(stack: Stack, seconds: float) -> Iterator[Figure]:
    """Measure guard and events, alone and beside the replay of what is stored."""
    guard, events = _load(requests.guard, 16), _load(requests.events, 4)
    guard(stack, 1, 0)
    alone = guard(stack, seconds, 1), events(stack, seconds, 1)
    connection = Connection(stack.url, stack.headers)
    status, body = connection.send("POST", "/api/v1/what-if", json.dumps(CHANGE).encode())
    if status != 202:
        raise RuntimeError(f"the what-if was answered {status}")
    path = f"/api/v1/what-if/{json.loads(body)['id']}"
    deadline = time.monotonic() + STARTS_WITHIN
    while _state(connection, path) == "waiting" and time.monotonic() < deadline:
        time.sleep(0.2)
    beside = guard(stack, seconds, 2), events(stack, seconds, 2)
    if (state := _state(connection, path)) != "running":
        raise RuntimeError(f"the what-if was {state} before the end of the measurement")
    connection.send("POST", f"{path}/cancel")
    connection.close()
    for name, quiet, busy in zip(("guard", "batches of events"), alone, beside, strict=True):
        if quiet.refused or busy.refused:
            raise RuntimeError(f"{quiet.refused + busy.refused} requests of {name} were refused")
        yield Figure(f"{name} alone", quiet.per_second, "/s")
        yield Figure(f"{name} beside a what-if", busy.per_second, "/s")
        yield Figure(f"{name}, time beside a what-if against alone", quiet.per_second / busy.per_second, "x")
        yield Figure(f"{name} beside a what-if, p99", busy.milliseconds(0.99), "ms")


def _load(request: Callable[[int, int], Request], clients: int) -> Callable[[Stack, float, int], Measured]:
    """Return a load whose turns use sessions of their own."""

    def send(stack: Stack, seconds: float, turn: int) -> Measured:
        return keep_asking(
            stack.url,
            stack.headers,
            lambda client, number: request(client + 1000 * turn, number),
            clients=clients,
            seconds=seconds,
        )

    return send


def _state(connection: Connection, path: str) -> str:
    state: str = json.loads(connection.send("GET", path)[1])["state"]
    return state
