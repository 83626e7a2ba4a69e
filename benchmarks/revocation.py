"""The time until connections that stay open end with the right to them: sockets, long polls, streams of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from typing import Final
from urllib.parse import urlsplit

import websockets
from websockets.typing import Origin

from benchmarks.gateway import CREATE_BACKEND, model_server
from benchmarks.report import Figure, percentile
from benchmarks.stack import ROOT, Stack

CONNECTIONS: Final = 50
"""Of each kind, with one key and one sign-in."""
ROUNDS: Final = 12
KINDS: Final = ("sockets", "long polls", "streams of the gateway")
PATIENCE_SECONDS: Final = 60.0
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
print(json.dumps([keys.create_key(project, f"revocation {n}", SYSTEM)[1] for n in range(int(sys.argv[1]))]))
"""


def run() -> list[Figure]:
    """Measure; takes half a minute."""
    with model_server() as model:
        settings = {"LOOPGUARD_GATEWAY_UPSTREAMS": model, "LOOPGUARD_ALERT_ALLOWED_NETWORKS": "127.0.0.0/8"}
        with Stack(settings) as stack:
            python = [sys.executable, "-c"]
            create = [*python, CREATE_BACKEND, "endless", f"{model}/1000000/10"]
            subprocess.run(create, cwd=ROOT, env=stack.environment, check=True)
            prepare = [*python, _PREPARE, str(ROUNDS)]
            done = subprocess.run(
                prepare, cwd=ROOT, env=stack.environment, check=True, stdout=subprocess.PIPE, text=True
            )
            waits: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for number, key in enumerate(json.loads(done.stdout)):
                asyncio.run(_round(stack, key, f"s-{number}", waits))
    figures = []
    for kind in KINDS:
        name = f"{kind}, {ROUNDS} x {CONNECTIONS}: revocation to end"
        figures += [
            Figure(f"{name}, p50", percentile(waits[kind], 0.5), "s"),
            Figure(f"{name}, longest", max(waits[kind]), "s", 1.0, 0.6),
        ]
    return figures


async def _round(stack: Stack, key: str, session: str, waits: dict[str, list[float]]) -> None:
    """Open the connections, end key and sign-in in the database, and wait until each client has seen it."""
    cookie = await asyncio.to_thread(stack.session_cookie)
    approval = await held_call(stack, key, session)
    opened: asyncio.Queue[None] = asyncio.Queue()
    clients = {
        "sockets": lambda: _socket(stack, cookie, opened),
        "long polls": lambda: _long_poll(stack, key, approval, opened),
        "streams of the gateway": lambda: _stream(stack, key, opened),
    }
    tasks = {kind: [asyncio.create_task(clients[kind]()) for _ in range(CONNECTIONS)] for kind in KINDS}
    everyone = [task for of_kind in tasks.values() for task in of_kind]
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in everyone:
            await opened.get()
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
        await asyncio.gather(*everyone)
    for kind in KINDS:
        waits[kind] += [task.result() - at for task in tasks[kind]]


async def held_call(stack: Stack, key: str, session: str) -> str:
    """Repeat a call until it is held; return the id of its approval."""
    for number in range(10):
        call = {"call_id": f"c{number}", "tool": "search", "arguments": {}}
        body = json.dumps({"session": session, "calls": [call]}).encode()
        head = f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        reader, writer = await open_request(stack.url, "POST /api/v1/guard", head, body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        (verdict,) = json.loads(await reader.readexactly(length))["verdicts"]
        writer.close()
        if verdict["decision"] == "hold":
            return str(verdict["approval"]["id"])
    raise RuntimeError("no call was held")


async def _socket(stack: Stack, cookie: str, opened: asyncio.Queue[None]) -> float:
    address = f"ws{stack.live_url.removeprefix('http')}/ws/p/default/"
    await asyncio.sleep(random.random() * 3)  # sockets are let in at a bounded rate
    headers, patience = {"Cookie": cookie}, PATIENCE_SECONDS
    async with websockets.connect(
        address, origin=Origin(stack.url), additional_headers=headers, open_timeout=patience
    ) as socket:
        await socket.recv()
        opened.put_nowait(None)
        with contextlib.suppress(websockets.ConnectionClosed):
            async for _ in socket:
                pass
        return time.perf_counter()


async def _long_poll(stack: Stack, key: str, approval: str, opened: asyncio.Queue[None]) -> float:
    head = f"Authorization: Bearer {key}\r\n"
    reader, writer = await open_request(stack.live_url, f"GET /api/v1/approvals/{approval}?wait=60", head)
    opened.put_nowait(None)
    status = await reader.readline()
    ended_at = time.perf_counter()
    if b" 401 " not in status:
        raise RuntimeError(f"a long poll was answered {status!r}")
    writer.close()
    return ended_at


async def _stream(stack: Stack, key: str, opened: asyncio.Queue[None]) -> float:
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    ).encode()
    head = f"LoopGuard-Key: {key}\r\nAuthorization: Bearer sk-benchmark\r\nContent-Length: {len(body)}\r\n"
    path = "POST /gateway/endless/chat/completions"
    reader, writer = await open_request(stack.live_url, path, head, body)
    await reader.readuntil(b"words")
    opened.put_nowait(None)
    while b'"unknown_key"' not in await reader.readline():
        if reader.at_eof():
            raise RuntimeError("a stream was cut without an error")
    ended_at = time.perf_counter()
    writer.close()
    return ended_at


async def open_request(
    url: str, line: str, head: str, body: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request by itself, whose answer may take its time; return its connection."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(f"{line} HTTP/1.1\r\nHost: {at.netloc}\r\n{head}\r\n".encode() + body)
    return reader, writer
