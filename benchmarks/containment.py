"""The time until everything that is open or calls sees a containment: sockets, long polls, streams, guarded agents."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from typing import Final

import websockets
from websockets.typing import Origin

from benchmarks.gateway import CREATE_BACKEND, model_server
from benchmarks.report import Figure, percentile
from benchmarks.revocation import PATIENCE_SECONDS, held_call, open_request
from benchmarks.stack import ROOT, Stack

CONNECTIONS: Final = 600
"""Sockets, long polls and streams together, a third of each."""
AGENTS: Final = 200
"""Guarded agents, each with a session of its own, that call once a second."""
KINDS: Final = ("sockets", "long polls", "streams of the gateway")
_PREPARE = """
import django
django.setup()
from detection.engine.scopes import PROJECT
from detection.models import Project
from detection.services import keys
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
project = Project.objects.get(slug="default")
values = {"mode": "ask", "answer_timeout_seconds": 3600}
overrides.save_override(project.pk, PROJECT, values, SYSTEM, note="benchmark")
print(keys.create_key(project, "containment", SYSTEM)[1])
"""


def run(connections: int = CONNECTIONS, agents: int = AGENTS) -> list[Figure]:
    """Contain the project once while all are open; takes half a minute."""
    with model_server() as model:
        settings = {"LOOPGUARD_GATEWAY_UPSTREAMS": model, "LOOPGUARD_ALERT_ALLOWED_NETWORKS": "127.0.0.0/8"}
        with Stack(settings) as stack:
            python = [sys.executable, "-c"]
            create = [*python, CREATE_BACKEND, "endless", f"{model}/1000000/10"]
            subprocess.run(create, cwd=ROOT, env=stack.environment, check=True)
            prepare = subprocess.run(
                [*python, _PREPARE],
                cwd=ROOT,
                env=stack.environment,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            waits, ran_after = asyncio.run(
                _contain(stack, prepare.stdout.strip(), max(1, connections // 3), agents)
            )
    figures = []
    for kind, seconds in waits.items():
        name = f"{kind}, {len(seconds)}: containment to seen"
        figures += [
            Figure(f"{name}, p50", percentile(seconds, 0.5), "s"),
            Figure(f"{name}, longest", max(seconds), "s", 1.0, 0.6),
        ]
    return [*figures, Figure(f"{agents} guarded agents: calls sent after it that ran", ran_after, "", 0.0)]


async def _contain(stack: Stack, key: str, each: int, agents: int) -> tuple[dict[str, list[float]], int]:
    """Open the connections and let the agents call, contain the project, and wait until each has seen it."""
    cookie = await asyncio.to_thread(stack.session_cookie)
    approval = await held_call(stack, key, "held")
    opened: asyncio.Queue[None] = asyncio.Queue()
    clients = {
        "sockets": lambda: _socket(stack, cookie, opened),
        "long polls": lambda: _long_poll(stack, key, approval, opened),
        "streams of the gateway": lambda: _stream(stack, key, opened),
    }
    tasks = {kind: [asyncio.create_task(clients[kind]()) for _ in range(each)] for kind in KINDS}
    calling = [asyncio.create_task(_agent(stack, key, f"agent-{number}", opened)) for number in range(agents)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(each * len(KINDS) + agents):
            await opened.get()
    await asyncio.sleep(1 + random.random())
    body = json.dumps({"scope": "project", "reaction": "stop", "reason": "benchmark"}).encode()
    asked_at = time.perf_counter()
    status, _ = await _post(stack, key, "/api/v1/containments", body)
    in_force_at = time.perf_counter()
    if status != 201:
        raise RuntimeError(f"the containment was answered {status}")
    async with asyncio.timeout(PATIENCE_SECONDS):
        waits = {kind: [await task - asked_at for task in own] for kind, own in tasks.items()}
        sent = [await task for task in calling]
    return waits, sum(at > in_force_at for times in sent for at in times)


async def _agent(stack: Stack, key: str, session: str, opened: asyncio.Queue[None]) -> list[float]:
    """Call once a second until a call is stopped; return when the calls that ran were sent."""
    ran: list[float] = []
    await asyncio.sleep(random.random())
    while True:
        call = {"call_id": f"c{len(ran)}", "tool": "search", "arguments": {"page": len(ran)}}
        body = json.dumps({"session": session, "calls": [call]}).encode()
        sent_at = time.perf_counter()
        _, answer = await _post(stack, key, "/api/v1/guard", body)
        if json.loads(answer).get("decision") == "stop":
            return ran
        ran.append(sent_at)
        if len(ran) == 1:
            opened.put_nowait(None)
        await asyncio.sleep(1)


async def _socket(stack: Stack, cookie: str, opened: asyncio.Queue[None]) -> float:
    address = f"ws{stack.live_url.removeprefix('http')}/ws/p/default/"
    await asyncio.sleep(random.random() * 6)  # sockets are let in at a bounded rate
    headers = {"Cookie": cookie}
    async with websockets.connect(
        address, origin=Origin(stack.url), additional_headers=headers, open_timeout=PATIENCE_SECONDS
    ) as socket:
        await socket.recv()
        opened.put_nowait(None)
        async for message in socket:
            if '"containment"' in str(message):
                return time.perf_counter()
    raise RuntimeError("a socket was closed")


async def _long_poll(stack: Stack, key: str, approval: str, opened: asyncio.Queue[None]) -> float:
    line, head = f"GET /api/v1/approvals/{approval}?wait=60", f"Authorization: Bearer {key}\r\n"
    reader, writer = await open_request(stack.live_url, line, head)
    opened.put_nowait(None)
    status = await reader.readline()
    ended_at = time.perf_counter()
    if b" 200 " not in status:
        raise RuntimeError(f"a long poll was answered {status!r}")
    writer.close()
    return ended_at


async def _stream(stack: Stack, key: str, opened: asyncio.Queue[None]) -> float:
    body = json.dumps(
        {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    ).encode()
    head = f"LoopGuard-Key: {key}\r\nAuthorization: Bearer sk-benchmark\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await open_request(stack.live_url, "POST /gateway/endless/chat/completions", head, body)
    await reader.readuntil(b"words")
    opened.put_nowait(None)
    while b"stopped this project" not in await reader.readline():
        if reader.at_eof():
            raise RuntimeError("a stream was cut without the message")
    ended_at = time.perf_counter()
    writer.close()
    return ended_at


async def _post(stack: Stack, key: str, path: str, body: bytes) -> tuple[int, bytes]:
    head = f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    reader, writer = await open_request(stack.url, f"POST {path}", head, body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    content = await reader.readexactly(length)
    writer.close()
    return int(answer.split(b" ", 2)[1]), content
