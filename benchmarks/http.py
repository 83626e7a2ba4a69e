"""Speeds over HTTP: the guard beside the bare endpoint, batches of events, and the time until an incident is stored."""

from __future__ import annotations

import json
import threading
import time
from statistics import median
from typing import LiteralString

import psycopg

from benchmarks import requests
from benchmarks.load import Connection, Measured, Request, keep_asking
from benchmarks.report import Figure, percentile
from benchmarks.stack import Stack

CLIENTS = 16
TURNS = 3
GUARD_TURNS = 6
HALF_LOAD_EVENTS_PER_SECOND = 2_000
EVENT_CLIENTS = 4
_BEHIND = "SELECT count(*) FROM detection_session WHERE evaluated_seq < last_seq"


def guard(stack: Stack, seconds: float) -> list[Figure]:
    """Send requests to guard, to the bare endpoint and to the floor by turns, under the same conditions.

    The ratios are the median of those of the turns, so that a slow moment of the machine does not decide them.
    """
    bare, floor, asked, used = Measured(), Measured(), Measured(), 0.0
    against_bare: list[float] = []
    against_floor: list[float] = []
    keep_asking(stack.url, stack.headers, requests.guard, clients=CLIENTS, seconds=1)
    keep_asking(stack.url, stack.headers, requests.floor, clients=CLIENTS, seconds=2)
    for turn in range(GUARD_TURNS):
        # Other clients' numbers make other sessions.
        offset = (turn + 1) * 1000

        def ask(client: int, number: int, offset: int = offset) -> Request:
            return requests.guard(client + offset, number)

        own_bare, own_floor = (
            keep_asking(stack.url, stack.headers, one, clients=CLIENTS, seconds=seconds / GUARD_TURNS)
            for one in (requests.bare, requests.floor)
        )
        before = _processor_seconds(stack)
        own = keep_asking(stack.url, stack.headers, ask, clients=CLIENTS, seconds=seconds / GUARD_TURNS)
        used += _processor_seconds(stack) - before
        against_bare.append(own_bare.per_second / own.per_second)
        against_floor.append(own_floor.per_second / own.per_second)
        bare.add(own_bare)
        floor.add(own_floor)
        asked.add(own)
    bare_alone = keep_asking(stack.url, stack.headers, requests.bare, clients=1, seconds=seconds / 5)
    alone = keep_asking(
        stack.url,
        stack.headers,
        lambda client, number: requests.guard(client + 9000, number),
        clients=1,
        seconds=seconds / 5,
    )
    if asked.refused or bare.refused or floor.refused:
        raise RuntimeError(
            f"{asked.refused} guard, {bare.refused} bare and {floor.refused} floor requests were refused"
        )
    return [
        Figure("bare insert and commit, 16 clients", bare.per_second, "/s"),
        Figure("bare insert and commit, p99", bare.milliseconds(0.99), "ms"),
        Figure("guard, 16 clients", asked.per_second, "/s", 300, 800, more_is_better=True),
        Figure("guard, p50", asked.milliseconds(0.5), "ms"),
        Figure("guard, p99", asked.milliseconds(0.99), "ms", 80, 40),
        Figure("guard, time against bare", median(against_bare), "x", 2.5, 1.5),
        Figure("floor (the guard's statements alone), 16 clients", floor.per_second, "/s"),
        Figure("guard, time against the floor", median(against_floor), "x", 1.5),
        Figure(
            "guard, processor time of web and PostgreSQL", 1000 * used / len(asked.latencies), "ms/call", 2.4
        ),
        Figure("bare insert and commit, one client, p50", bare_alone.milliseconds(0.5), "ms"),
        Figure("guard, one client, p50", alone.milliseconds(0.5), "ms", 3),
    ]


def _processor_seconds(stack: Stack) -> float:
    """Return the processor time of the processes that a guard call waits for."""
    used = stack.processor_seconds()
    return used["web"] + used["postgresql"]


def events(stack: Stack, seconds: float) -> list[Figure]:
    """Post batches, then wait until the workers have caught up; before that, the same batches to the bare endpoint."""
    bare = keep_asking(
        stack.url, stack.headers, requests.bare_events, clients=EVENT_CLIENTS, seconds=seconds / TURNS
    )
    with stack.connect() as database:
        started = time.perf_counter()
        posted = keep_asking(
            stack.url, stack.headers, requests.events, clients=EVENT_CLIENTS, seconds=seconds
        )
        stored_seconds = time.perf_counter() - started
        wait_for_workers(database, 120)
        done_seconds = time.perf_counter() - started
    if posted.refused or bare.refused:
        raise RuntimeError(f"{posted.refused} batches and {bare.refused} bare requests were refused")
    count = 100 * len(posted.latencies)
    return [
        Figure("events in bare inserts, one row for 100", 100 * bare.per_second, "/s"),
        Figure("events stored, 100 a request, 4 clients", count / stored_seconds, "/s"),
        Figure("events stored and evaluated", count / done_seconds, "/s", 4_000, 10_000, more_is_better=True),
        Figure("events, answer p99", posted.milliseconds(0.99), "ms"),
        Figure("workers behind at the end of posting", done_seconds - stored_seconds, "s"),
    ]


def wait_for_workers(database: psycopg.Connection[tuple[object, ...]], seconds: float) -> None:
    """Wait until every session is evaluated. Raises `TimeoutError` after `seconds`."""
    ends_at = time.perf_counter() + seconds
    while database.execute(_BEHIND).fetchone() != (0,):
        if time.perf_counter() > ends_at:
            raise TimeoutError("the workers did not catch up")
        time.sleep(0.02)


def commit_to_incident(stack: Stack, seconds: float) -> list[Figure]:
    """Post loops during half of the required load, and wait for their incidents."""
    ended = threading.Event()
    pacers = [threading.Thread(target=_keep_pace, args=(stack, client, ended)) for client in range(2)]
    for pacer in pacers:
        pacer.start()
    waited: list[float] = []
    bare: list[float] = []
    connection = Connection(stack.url, stack.headers)
    try:
        with stack.connect() as database:
            ends_at = time.perf_counter() + seconds
            while time.perf_counter() < ends_at:
                waited.append(_seconds_to_incident(connection, database, f"probe-{len(waited)}"))
                bare.append(_seconds_to_bare_row(connection, database, len(bare)))
                time.sleep(0.1)
            ended.set()
            for pacer in pacers:
                pacer.join()
            wait_for_workers(database, 120)
    finally:
        ended.set()
        connection.close()
    return [
        Figure("bare request to its row, p95 at 2,000 events/s", percentile(bare, 0.95), "s"),
        Figure("commit to incident row, p50 at 2,000 events/s", percentile(waited, 0.5), "s"),
        Figure("commit to incident row, p95 at 2,000 events/s", percentile(waited, 0.95), "s", 2, 0.5),
    ]


def _seconds_to_incident(
    connection: Connection, database: psycopg.Connection[tuple[object, ...]], session: str
) -> float:
    connection.send("POST", *requests.loop(session))
    committed_at = time.perf_counter()
    _wait_for_row(database, "SELECT 1 FROM detection_incident WHERE session_name = %s", session)
    return time.perf_counter() - committed_at


def _seconds_to_bare_row(
    connection: Connection, database: psycopg.Connection[tuple[object, ...]], number: int
) -> float:
    """Return the time from sending a bare request until the same kind of query finds its row."""
    before = time.perf_counter()
    _, body = connection.send("POST", *requests.bare(0, number))
    _wait_for_row(database, "SELECT 1 FROM bare WHERE id = %s", json.loads(body)["id"])
    return time.perf_counter() - before


def _wait_for_row(
    database: psycopg.Connection[tuple[object, ...]], query: LiteralString, value: object
) -> None:
    began = time.perf_counter()
    while database.execute(query, [value]).fetchone() is None:
        if time.perf_counter() - began > 30:
            raise TimeoutError("no row within 30 s")
        time.sleep(0.005)


def _keep_pace(stack: Stack, client: int, ended: threading.Event) -> None:
    """Send a quarter of the required load."""
    connection = Connection(stack.url, stack.headers)
    pause, number, due = 200 / HALF_LOAD_EVENTS_PER_SECOND, 0, time.perf_counter()
    while not ended.is_set():
        connection.send("POST", *requests.events(100 + client, number))
        number += 1
        due += pause
        time.sleep(max(0.0, due - time.perf_counter()))
    connection.close()
