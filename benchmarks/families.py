"""The guard for trees of sub-agents, beside sessions that belong to none."""

from __future__ import annotations

import json

from benchmarks import requests
from benchmarks.load import Measured, Request, keep_asking
from benchmarks.report import Figure
from benchmarks.stack import Stack

CLIENTS = 16
CHILDREN = 8
"""Sub-agents of one tree that work at the same time."""
WATCHED = {"TOOL_LOOP_FAMILY_BUDGET_ENABLED": "true", "TOOL_LOOP_FAMILY_BUDGET_MAX_CALLS": "10000000"}


def run(seconds: float) -> list[Figure]:
    """Measure `standard`, in which only calls that show a new sub-agent lock a tree, and a limit of the whole tree."""
    with Stack() as stack:
        alone, below = _measure(stack, seconds)
    with Stack(WATCHED) as stack:
        watched_alone, watched = _measure(stack, seconds)
    return [
        Figure("guard, sessions without a parent", alone.per_second, "/s"),
        Figure("guard, sub-agents, eight to a tree", below.per_second, "/s"),
        Figure(
            "guard, sub-agents against sessions without a parent", alone.per_second / below.per_second, "x"
        ),
        Figure("guard, limit of the tree, sessions without a parent", watched_alone.per_second, "/s"),
        Figure("guard, limit of the tree, sub-agents, eight to a tree", watched.per_second, "/s"),
        Figure("guard, limit of the tree, sub-agents, p99", watched.milliseconds(0.99), "ms"),
    ]


def _measure(stack: Stack, seconds: float) -> tuple[Measured, Measured]:
    """Return what sessions without a parent and sub-agents took, by turns."""
    alone, below = Measured(), Measured()
    keep_asking(stack.url, stack.headers, requests.guard, clients=CLIENTS, seconds=1)
    for turn in range(1, 3):

        def ask(client: int, number: int, turn: int = turn) -> Request:
            return requests.guard(client + turn * 1000, number)

        def ask_below(client: int, number: int, turn: int = turn) -> Request:
            path, body = requests.guard(client + turn * 1000 + 500, number)
            session, _ = divmod(number, requests.CALLS_PER_SESSION)
            top = f"tree-{turn}-{client // CHILDREN}-{session}"
            return path, json.dumps({**json.loads(body), "parent_session": top}).encode()

        for measured, request in ((alone, ask), (below, ask_below)):
            measured.add(keep_asking(stack.url, stack.headers, request, clients=CLIENTS, seconds=seconds / 4))
    if alone.refused or below.refused:
        raise RuntimeError(f"{alone.refused + below.refused} requests were refused")
    return alone, below
