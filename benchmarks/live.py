"""Time from an event to its row on open live pages: hint on the socket, pause of the script, fetched row."""

from __future__ import annotations

import asyncio
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import websockets
from websockets.typing import Origin

from benchmarks import requests
from benchmarks.load import Connection
from benchmarks.report import Figure, percentile
from benchmarks.stack import Stack

FETCH_PAUSE_SECONDS = (0.15, 0.3)
FETCHERS = 16


def run(stack: Stack, viewers: int, events: int) -> list[Figure]:
    """Open the pages, send events one by one, and measure the time until each page has the row."""
    seconds, bare = asyncio.run(_measure(stack, viewers, events))
    return [
        Figure(f"bare request, {viewers} viewers, p95", percentile(bare, 0.95), "s"),
        Figure(f"event to row, {viewers} viewers, p50", percentile(seconds, 0.5), "s"),
        Figure(f"event to row, {viewers} viewers, p95", percentile(seconds, 0.95), "s", 1.0, 0.3),
        Figure(
            "pages that got every row",
            len(seconds) / (viewers * events),
            "share",
            1.0,
            1.0,
            more_is_better=True,
        ),
    ]


async def _measure(stack: Stack, viewers: int, events: int) -> tuple[list[float], list[float]]:
    """Return the times to the rows, and those of a bare request at the moment when the pages fetch."""
    cookie = stack.session_cookie()
    connections: SimpleQueue[Connection] = SimpleQueue()
    for _ in range(FETCHERS):
        connections.put(Connection(stack.url, {"Cookie": cookie, "Accept": "application/json"}))
    address = f"ws{stack.live_url.removeprefix('http')}/ws/p/default/"
    sent_at: dict[str, float] = {}
    waits: list[float] = []
    bare: list[float] = []
    poster = Connection(stack.url, stack.headers)
    with ThreadPoolExecutor(FETCHERS) as threads:
        pages = [
            asyncio.create_task(_page(address, cookie, stack.url, connections, threads, sent_at, waits))
            for _ in range(viewers)
        ]
        await asyncio.sleep(4 + viewers / 40)  # sockets are let in at a bounded rate
        for number in range(events):
            name = f"live-{number}"
            body = {
                "events": [
                    {"type": "call", "session": name, "call_id": "c1", "tool": "search", "arguments": {}}
                ]
            }
            sent_at[name] = time.perf_counter()
            await asyncio.to_thread(poster.send, "POST", "/api/v1/events", json.dumps(body).encode())
            await asyncio.sleep(FETCH_PAUSE_SECONDS[0])
            before = time.perf_counter()
            await asyncio.to_thread(poster.send, "POST", *requests.bare(0, number))
            bare.append(time.perf_counter() - before)
            await asyncio.sleep(1.0 - FETCH_PAUSE_SECONDS[0])
        await asyncio.sleep(2.0)
        for page in pages:
            page.cancel()
        await asyncio.gather(*pages, return_exceptions=True)
    while not connections.empty():
        connections.get().close()
    poster.close()
    return waits, bare


async def _page(
    address: str, cookie: str, origin: str, connections: SimpleQueue[Connection], threads: ThreadPoolExecutor,
    sent_at: dict[str, float], waits: list[float],
) -> None:  # fmt: skip
    """Do what the page's script does."""
    loop = asyncio.get_running_loop()
    cursor, seen = "", set()

    def fetch() -> dict[str, object]:
        connection = connections.get()
        try:
            _, body = connection.send("GET", f"/p/default/live/rows?since={cursor}")
            return dict(json.loads(body))
        finally:
            connections.put(connection)

    await asyncio.sleep(random.random() * 3)
    headers = {"Cookie": cookie}
    async with websockets.connect(address, origin=Origin(origin), additional_headers=headers) as socket:
        async for text in socket:
            if json.loads(text)["type"] not in ("ready", "resync", "hints"):
                continue
            await asyncio.sleep(random.uniform(*FETCH_PAUSE_SECONDS))
            answer = await loop.run_in_executor(threads, fetch)
            cursor = str(answer["cursor"])
            for row in answer["rows"]:  # type: ignore[attr-defined]
                name = row["html"].partition('data-session="')[2].partition('"')[0]
                if name in sent_at and name not in seen:
                    seen.add(name)
                    waits.append(time.perf_counter() - sent_at[name])
