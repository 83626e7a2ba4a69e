"""The time until connections that stay open end with the right to them: sockets, long polls, streams of the gateway."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from benchmarks.connections import KINDS, PATIENCE_SECONDS, Connections, asking_stack, figures_of, held_call
from benchmarks.report import Figure
from benchmarks.stack import Stack

CONNECTIONS: Final = 50
"""Of each kind, with one key and one sign-in."""
ROUNDS: Final = 12


def run() -> list[Figure]:
    """Measure; takes half a minute."""
    waits: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with asking_stack(ROUNDS) as (stack, keys):
        for number, key in enumerate(keys):
            asyncio.run(_round(stack, key, f"s-{number}", waits))
    return figures_of(waits, "revocation to end")


async def _round(stack: Stack, key: str, session: str, waits: dict[str, list[float]]) -> None:
    """Open the connections, end key and sign-in in the database, and wait until each client has seen it."""
    cookie = await asyncio.to_thread(stack.session_cookie)
    approval = await held_call(stack, key, session)
    connections = Connections(
        stack,
        key,
        each=CONNECTIONS,
        approval=approval,
        cookie=cookie,
        poll_end=401,
        stream_end='"unknown_key"',
    )
    await connections.all_open()
    await asyncio.sleep(1 + random.random())
    with stack.connect() as database:
        public_id = key.removeprefix("lg_")[:10]
        revoked = database.execute(
            "UPDATE detection_apikey SET revoked_at = now() WHERE public_id = %s", [public_id]
        )
        ended = database.execute("UPDATE django_session SET expire_date = now()")
    at = time.perf_counter()
    if not (revoked.rowcount and ended.rowcount):
        raise RuntimeError("nothing was revoked")
    async with asyncio.timeout(PATIENCE_SECONDS):
        for kind, tasks in connections.tasks.items():
            waits[kind] += [await task - at for task in tasks]
