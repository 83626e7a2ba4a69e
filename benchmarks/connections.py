"""Connections that stay open until something ends them: sockets, long polls, streams of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import websockets
from websockets.typing import Origin

from benchmarks.gateway import CREATE_BACKEND, model_server
from benchmarks.report import Figure, percentile
from benchmarks.stack import ROOT, Stack

KINDS: Final = ("sockets", "long polls", "streams of the gateway")
PATIENCE_SECONDS: Final = 60.0
_PER_SECOND: Final = 20
"""Sockets opened a second: they are let in at a bounded rate."""
_PREPARE = """
import json, sys, django
django.setup()
from detection.engine.scopes import PROJECT
from detection.models import Project
from detection.services import keys
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
project = Project.objects.get(slug="default")
values = {"mode": "ask", "answer_timeout_seconds": 3600}
overrides.save_override(project.pk, PROJECT, values, SYSTEM, note="benchmark")
print(json.dumps([keys.create_key(project, f"benchmark {n}", SYSTEM)[1] for n in range(int(sys.argv[1]))]))
"""


@contextmanager
def asking_stack(keys: int) -> Iterator[tuple[Stack, list[str]]]:
    """Start a stack with an endless model server, whose default project asks about loops; yield it with keys of that."""
    with model_server() as model:
        settings = {"LOOPGUARD_GATEWAY_UPSTREAMS": model, "LOOPGUARD_ALERT_ALLOWED_NETWORKS": "127.0.0.0/8"}
        with Stack(settings) as stack:
            python = [sys.executable, "-c"]
            create = [*python, CREATE_BACKEND, "endless", f"{model}/1000000/10"]
            subprocess.run(create, cwd=ROOT, env=stack.environment, check=True)
            prepare = [*python, _PREPARE, str(keys)]
            done = subprocess.run(
                prepare, cwd=ROOT, env=stack.environment, check=True, stdout=subprocess.PIPE, text=True
            )
            yield stack, json.loads(done.stdout)


class Connections:
    """So many connections of each kind.

    Attributes
    ----------
    asked_at
        When what they wait for was asked for: from then on, a socket that is told to reload everything counts as ended.
    opened
        Gets an item for each connection that is open.
    tasks
        By kind; each returns the time at which its client saw the end, on the clock of `time.perf_counter`.

    Parameters
    ----------
    socket_end
        What the message has with which a socket counts as ended; without one, it does when it is closed.
    poll_end, stream_end
        The status with which long polls must be answered, and what is in the line that ends streams.
    """

    def __init__(
        self,
        stack: Stack,
        key: str,
        *,
        each: int,
        approval: str,
        cookie: str,
        socket_end: str = "",
        poll_end: int,
        stream_end: str,
    ) -> None:
        self._stack, self._key, self._approval, self._cookie = stack, key, approval, cookie
        self._sockets_seconds = each / _PER_SECOND
        self._socket_end, self._poll_end, self._stream_end = socket_end, poll_end, stream_end.encode()
        self.asked_at = math.inf
        self.opened: asyncio.Queue[None] = asyncio.Queue()
        clients = dict(zip(KINDS, (self._socket, self._long_poll, self._stream), strict=True))
        self.tasks = {kind: [asyncio.create_task(clients[kind]()) for _ in range(each)] for kind in KINDS}

    async def all_open(self, others: int = 0) -> None:
        """Wait until all are open, and `others` that also report to `opened`.

        Raises
        ------
        RuntimeError
            If one has ended instead.
        """
        everyone = [task for tasks in self.tasks.values() for task in tasks]
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(len(everyone) + others):
                await self.opened.get()
        for task in everyone:
            if task.done():
                raise RuntimeError("a connection ended early") from task.exception()

    async def _socket(self) -> float:
        address = f"ws{self._stack.live_url.removeprefix('http')}/ws/p/default/"
        await asyncio.sleep(random.random() * self._sockets_seconds)
        headers, origin = {"Cookie": self._cookie}, Origin(self._stack.url)
        async with websockets.connect(
            address, origin=origin, additional_headers=headers, open_timeout=PATIENCE_SECONDS
        ) as socket:
            await socket.recv()
            self.opened.put_nowait(None)
            with contextlib.suppress(websockets.ConnectionClosed):
                async for message in socket:
                    is_reload = '"resync"' in str(message) and time.perf_counter() > self.asked_at
                    if self._socket_end and (self._socket_end in str(message) or is_reload):
                        return time.perf_counter()
            if self._socket_end:
                raise RuntimeError("a socket was closed")
            return time.perf_counter()

    async def _long_poll(self) -> float:
        line = f"GET /api/v1/approvals/{self._approval}?wait=60"
        reader, writer = await open_request(
            self._stack.live_url, line, f"Authorization: Bearer {self._key}\r\n"
        )
        self.opened.put_nowait(None)
        status = await reader.readline()
        ended_at = time.perf_counter()
        if f" {self._poll_end} ".encode() not in status:
            raise RuntimeError(f"a long poll was answered {status!r}")
        writer.close()
        return ended_at

    async def _stream(self) -> float:
        body = json.dumps(
            {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        ).encode()
        head = f"LoopGuard-Key: {self._key}\r\nAuthorization: Bearer sk-benchmark\r\nContent-Length: {len(body)}\r\n"
        path = "POST /gateway/endless/chat/completions"
        reader, writer = await open_request(self._stack.live_url, path, head, body)
        await reader.readuntil(b"words")
        self.opened.put_nowait(None)
        while self._stream_end not in await reader.readline():
            if reader.at_eof():
                raise RuntimeError("a stream was cut without the message that ends it")
        ended_at = time.perf_counter()
        writer.close()
        return ended_at


def figures_of(waits: Mapping[str, list[float]], label: str) -> list[Figure]:
    """Return the median and the longest of the seconds that each kind of connection waited."""
    figures = []
    for kind, seconds in waits.items():
        name = f"{kind}, {len(seconds)}: {label}"
        figures += [
            Figure(f"{name}, p50", percentile(seconds, 0.5), "s"),
            Figure(f"{name}, longest", max(seconds), "s", 1.0, 0.6),
        ]
    return figures


async def held_call(stack: Stack, key: str, session: str) -> str:
    """Repeat a call until it is held; return the id of its approval."""
    for number in range(10):
        call = {"call_id": f"c{number}", "tool": "search", "arguments": {}}
        _, answer = await post(stack, key, "/api/v1/guard", {"session": session, "calls": [call]})
        (verdict,) = json.loads(answer)["verdicts"]
        if verdict["decision"] == "hold":
            return str(verdict["approval"]["id"])
    raise RuntimeError("no call was held")


async def post(stack: Stack, key: str, path: str, document: Mapping[str, object]) -> tuple[int, bytes]:
    """Send a document to `web`, over a connection of its own; return status and body of the response."""
    body = json.dumps(document).encode()
    head = f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await open_request(stack.url, f"POST {path}", head, body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    content = await reader.readexactly(length)
    writer.close()
    return int(answer.split(b" ", 2)[1]), content


async def open_request(
    url: str, line: str, head: str, body: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request by itself, whose answer may take its time; return its connection."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(f"{line} HTTP/1.1\r\nHost: {at.netloc}\r\n{head}\r\n".encode() + body)
    return reader, writer
