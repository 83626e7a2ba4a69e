"""The time to answer while something stands still: the database, a session's lock, all threads, bodies that never end."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx

from benchmarks.report import Figure
from benchmarks.stack import Stack

CLIENTS, TIMES = 12, 4
UNFINISHED = 50
DEADLINE_SECONDS, TOLERANCE_SECONDS = 1.5, 0.25
BUDGET = {"LoopGuard-Timeout-Ms": "300"}


def run(stack: Stack) -> list[Figure]:
    """Measure the longest time to an answer of the guard and of the health check in each freeze."""
    _wait_for_success(stack)
    figures = []
    for name, freeze, status in (
        ("PostgreSQL frozen", _frozen_postgres, 503),
        ("the session's row locked", _locked_session, 503),
        ("the session's row locked, another session", _locked_session, 200),
        (f"{UNFINISHED} bodies that never end", _unfinished_bodies, 200),
    ):
        session = "frozen" if status == 503 else "other"
        with freeze(stack):
            waited, health, others = _answers(stack, session, status)
            budget, _, _ = _answers(stack, session, status, BUDGET)
        thawed = _wait_for_success(stack)
        longest = DEADLINE_SECONDS + TOLERANCE_SECONDS
        figures += [
            Figure(f"{name}: answers other than {status}", others, "", 0),
            Figure(f"{name}: guard, longest", waited, "s", longest, DEADLINE_SECONDS),
            Figure(f"{name}: guard with 300 ms, longest", budget, "s", 0.3 + TOLERANCE_SECONDS, 0.3),
            Figure(f"{name}: /healthz, longest", health * 1000, "ms", 250),
            Figure(f"{name}: first verdict afterwards", thawed, "s", 5),
        ]
    return figures


def _answers(
    stack: Stack, session: str, status: int, headers: dict[str, str] | None = None
) -> tuple[float, float, int]:
    """Ask the guard on many connections; return the longest times of guard and health check, and other statuses."""
    waited: list[float] = []
    wrong: list[int] = []

    def ask(number: int) -> None:
        with httpx.Client(
            base_url=stack.url, headers={**stack.headers, **(headers or {})}, timeout=30
        ) as client:
            for turn in range(TIMES):
                began = time.perf_counter()
                answer = client.post("/api/v1/guard", content=_guard(session, f"{began}-{number}-{turn}"))
                waited.append(time.perf_counter() - began)
                if answer.status_code != status:
                    wrong.append(answer.status_code)

    agents = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for agent in agents:
        agent.start()
    health: list[float] = []
    with httpx.Client(base_url=stack.url, timeout=30) as probe:
        while any(agent.is_alive() for agent in agents):
            began = time.perf_counter()
            probe.get("/healthz").raise_for_status()
            health.append(time.perf_counter() - began)
            time.sleep(0.02)
    for agent in agents:
        agent.join()
    return max(waited), max(health), len(wrong)


def _guard(session: str, call_id: str) -> bytes:
    return json.dumps({"session": session, "calls": [{"call_id": call_id, "tool": "t"}]}).encode()


def _wait_for_success(stack: Stack) -> float:
    began = time.perf_counter()
    while True:
        for session in ("frozen", "other"):
            body = _guard(session, f"{time.perf_counter()}")
            answer = httpx.post(f"{stack.url}/api/v1/guard", content=body, headers=stack.headers, timeout=30)
            if answer.status_code != 200:
                break
        else:
            return time.perf_counter() - began
        if time.perf_counter() - began > 60:
            raise TimeoutError("the guard does not recover")
        time.sleep(0.05)


@contextmanager
def _frozen_postgres(stack: Stack) -> Iterator[None]:
    pids = stack.postgres_pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def _locked_session(stack: Stack) -> Iterator[None]:
    with stack.connect() as database, database.transaction():
        database.execute("SELECT FROM detection_session WHERE external_id = 'frozen' FOR UPDATE")
        yield


@contextmanager
def _unfinished_bodies(stack: Stack) -> Iterator[None]:
    at = urlsplit(stack.url)
    open_sockets = []
    for _ in range(UNFINISHED):
        one = socket.create_connection((at.hostname or "", at.port or 80))
        one.sendall(
            f"POST /sign-in HTTP/1.1\r\nHost: {at.netloc}\r\nContent-Length: 100\r\n\r\nname=a".encode()
        )
        open_sockets.append(one)
    try:
        yield
    finally:
        for one in open_sockets:
            one.close()
