"""The time until everything that is open or calls sees a containment: sockets, long polls, streams, guarded agents."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Final

from benchmarks.connections import (
    KINDS,
    PATIENCE_SECONDS,
    Connections,
    asking_stack,
    figures_of,
    held_call,
    post,
)
from benchmarks.report import Figure
from benchmarks.stack import Stack

CONNECTIONS: Final = 600
"""Sockets, long polls and streams together, a third of each."""
AGENTS: Final = 200
"""Guarded agents, each with a session of its own, that call once a second."""


def run(connections: int = CONNECTIONS, agents: int = AGENTS) -> list[Figure]:
    """Contain the project once while all are open; takes half a minute."""
    with asking_stack(1) as (stack, (key,)):
        waits, ran_after = asyncio.run(_contain(stack, key, max(1, connections // len(KINDS)), agents))
    ran = Figure(f"{agents} guarded agents: calls sent after it that ran", ran_after, "", 0.0)
    return [*figures_of(waits, "containment to seen"), ran]


async def _contain(stack: Stack, key: str, each: int, agents: int) -> tuple[dict[str, list[float]], int]:
    """Open the connections and let the agents call, contain the project, and wait until each has seen it."""
    cookie = await asyncio.to_thread(stack.session_cookie)
    approval = await held_call(stack, key, "held")
    connections = Connections(
        stack,
        key,
        each=each,
        approval=approval,
        cookie=cookie,
        socket_end='"containment"',
        poll_end=200,
        stream_end="stopped this project",
    )
    calling = [
        asyncio.create_task(_agent(stack, key, f"agent-{number}", connections.opened))
        for number in range(agents)
    ]
    await connections.all_open(others=agents)
    await asyncio.sleep(1 + random.random())
    asked_at = connections.asked_at = time.perf_counter()
    wanted = {"scope": "project", "reaction": "stop", "reason": "benchmark"}
    status, _ = await post(stack, key, "/api/v1/containments", wanted)
    in_force_at = time.perf_counter()
    if status != 201:
        raise RuntimeError(f"the containment was answered {status}")
    async with asyncio.timeout(PATIENCE_SECONDS):
        waits = {kind: [await task - asked_at for task in own] for kind, own in connections.tasks.items()}
        sent = [await task for task in calling]
    return waits, sum(at > in_force_at for times in sent for at in times)


async def _agent(stack: Stack, key: str, session: str, opened: asyncio.Queue[None]) -> list[float]:
    """Call once a second until a call is stopped; return when the calls that ran were sent."""
    ran: list[float] = []
    await asyncio.sleep(random.random())
    while True:
        call = {"call_id": f"c{len(ran)}", "tool": "search", "arguments": {"page": len(ran)}}
        sent_at = time.perf_counter()
        _, answer = await post(stack, key, "/api/v1/guard", {"session": session, "calls": [call]})
        if json.loads(answer).get("decision") == "stop":
            return ran
        ran.append(sent_at)
        if len(ran) == 1:
            opened.put_nowait(None)
        await asyncio.sleep(1)
