"""Streams through the gateway beside a plain pass-through of the same process, and beside another proxy on the same work."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.report import Figure, percentile
from benchmarks.stack import ROOT, Stack
from loopguard_site.supervisor.addresses import free_port

LITELLM = "LOOPGUARD_BENCHMARK_LITELLM"
"""Names the command of an installed LiteLLM proxy; without it, LoopGuard is measured alone."""
STREAMS = 200
EVENTS_OF_MANY, PER_SECOND_OF_MANY = 100, 10
EVENTS_OF_LONG = 5_000
LONG_STREAMS = 8
SHORT, LONG = "1-0", f"{EVENTS_OF_LONG}-0"
PACED = f"{EVENTS_OF_MANY}-{PER_SECOND_OF_MANY}"
LENGTHS = (SHORT, LONG, PACED)
"""Events of an answer, and how many a second; 0 for as fast as they are read."""
FIRST_BYTES = 150
START_SECONDS = 120.0
CREATE_BACKEND = """
import sys, django
django.setup()
from detection.models import Project
from detection.services.audit import SYSTEM
from detection.services.gateway import backends
project = Project.objects.get(slug="default")
backends.create_backend(project.pk, SYSTEM, name=sys.argv[1], kind="openai", base_url=sys.argv[2])
"""
_numbers = itertools.count()


@dataclass
class Streams:
    """What clients saw of their streams.

    Attributes
    ----------
    first
        Seconds to the first byte of each body.
    failed
        Streams without a complete answer.
    """

    first: list[float] = field(default_factory=list)
    bytes: int = 0
    failed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Way:
    """A way to the model server, through the processes `pids`; `path` and `model` may name the length of the answer."""

    name: str
    url: str
    path: str
    model: str
    headers: dict[str, str]
    pids: tuple[int, ...]

    def cpu_seconds(self) -> float:
        """Return the processor time of its processes so far, threads included."""
        return sum(_cpu_seconds(pid) for pid in self.pids)

    def memory_bytes(self) -> int:
        """Return the resident memory of its processes."""
        return sum(_resident_bytes(pid) for pid in self.pids)


def run() -> Iterator[Figure]:
    """Measure; takes two minutes."""
    with model_server() as model:
        networks = {
            "LOOPGUARD_GATEWAY_UPSTREAMS": model,
            "LOOPGUARD_ALERT_ALLOWED_NETWORKS": "127.0.0.0/8",
        }
        with Stack(networks) as stack:
            key = {"LoopGuard-Key": stack.shown["api_key"], "Authorization": "Bearer sk-benchmark"}
            for length in LENGTHS:
                command = [
                    sys.executable,
                    "-c",
                    CREATE_BACKEND,
                    length,
                    f"{model}/{length.replace('-', '/')}",
                ]
                subprocess.run(command, cwd=ROOT, env=stack.environment, check=True)
            url, pids = stack.live_url, (stack.live_pid,)
            plain = Way("plain", url, "/gateway/{length}/answers", "scripted", key, pids)
            guarded = Way("guarded", url, "/gateway/{length}/chat/completions", "scripted", key, pids)
            yield from _compare(plain, guarded)
        if litellm := os.environ.get(LITELLM):
            with _litellm(litellm, model) as other:
                yield from _alone(other)


def _compare(plain: Way, guarded: Way) -> list[Figure]:
    first: dict[str, list[float]] = {"plain": [], "guarded": []}
    cost: dict[str, list[float]] = {"plain": [], "guarded": []}
    for way in (plain, guarded):
        asyncio.run(_one_by_one(way, 20))
    for _ in range(3):
        for way in (plain, guarded):
            first[way.name] += asyncio.run(_one_by_one(way, FIRST_BYTES // 3)).first
            cost[way.name].append(_cost_per_megabyte(way))
    added = percentile(first["guarded"], 0.5) - percentile(first["plain"], 0.5)
    costs = {name: percentile(values, 0.5) for name, values in cost.items()}
    before = guarded.memory_bytes()
    many, peak = _many(guarded)
    return [
        Figure("plain pass-through, time to first byte, p50", percentile(first["plain"], 0.5) * 1000, "ms"),
        Figure("guarded, time to first byte, p50", percentile(first["guarded"], 0.5) * 1000, "ms"),
        Figure("added time to first byte, p50", added * 1000, "ms", 15),
        Figure("plain pass-through, processor time of a megabyte", costs["plain"] * 1000, "ms"),
        Figure("guarded, processor time of a megabyte", costs["guarded"] * 1000, "ms"),
        Figure("processor time against the plain pass-through", costs["guarded"] / costs["plain"], "x", 1.3),
        *_of_many("guarded", many, peak - before),
    ]


def _alone(way: Way) -> list[Figure]:
    asyncio.run(_one_by_one(way, 20))
    first = asyncio.run(_one_by_one(way, FIRST_BYTES)).first
    cost = _cost_per_megabyte(way)
    before = way.memory_bytes()
    many, peak = _many(way)
    return [
        Figure(f"{way.name}, time to first byte, p50", percentile(first, 0.5) * 1000, "ms"),
        Figure(f"{way.name}, processor time of a megabyte", cost * 1000, "ms"),
        *_of_many(way.name, many, peak - before, is_ours=False),
    ]


def _of_many(name: str, streams: Streams, grown: int, *, is_ours: bool = True) -> Iterator[Figure]:
    label = f"{name}, {STREAMS} streams at a time"
    ideal = EVENTS_OF_MANY / PER_SECOND_OF_MANY
    yield Figure(f"{label}, failed", streams.failed, "", 0 if is_ours else None)
    yield Figure(f"{label}, time to first byte, p50", percentile(streams.first, 0.5) * 1000, "ms")
    yield Figure(f"{label}, time to the last end, of {ideal:.0f} s", streams.seconds, "s")
    yield Figure(f"{label}, memory more", grown / 2**20, "MiB", 200 if is_ours else None)


async def _one_by_one(way: Way, count: int) -> Streams:
    streams = Streams()
    for _ in range(count):
        await _stream(way, SHORT, streams)
    return streams


def _cost_per_megabyte(way: Way) -> float:
    """Return the seconds of processor time that a megabyte of long streams costs, several of them at a time."""

    async def long() -> Streams:
        streams = Streams()
        await asyncio.gather(*(_stream(way, LONG, streams) for _ in range(LONG_STREAMS)))
        return streams

    before = way.cpu_seconds()
    streams = asyncio.run(long())
    if streams.failed:
        raise RuntimeError(f"{streams.failed} streams of {way.name} failed")
    return (way.cpu_seconds() - before) / (streams.bytes / 1e6)


def _many(way: Way) -> tuple[Streams, int]:
    """Run many paced streams; return what the clients saw and the most memory."""
    streams, peaks = Streams(), [way.memory_bytes()]

    async def watch() -> None:
        while True:
            peaks.append(way.memory_bytes())
            await asyncio.sleep(0.2)

    async def all_of_them() -> None:
        watching = asyncio.create_task(watch())
        await asyncio.gather(*(_stream(way, PACED, streams) for _ in range(STREAMS)))
        watching.cancel()

    began = time.perf_counter()
    asyncio.run(all_of_them())
    streams.seconds = time.perf_counter() - began
    return streams, max(peaks)


async def _stream(way: Way, length: str, streams: Streams) -> None:
    """Send a request of a session of its own and read the stream to its end."""
    at = urlsplit(way.url)
    body = {
        "model": way.model.format(length=length),
        "stream": True,
        "messages": [
            {"role": "system", "content": "You are an agent. " * 40},
            {"role": "user", "content": f"Task {next(_numbers)}: read the files and say what they do."},
        ],
        "tools": [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}],
    }
    data = json.dumps(body).encode()
    headers = {"Host": at.netloc, "Content-Type": "application/json", "Content-Length": str(len(data))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers | way.headers).items())
    began, received = time.perf_counter(), b""
    try:
        async with asyncio.timeout(120):
            reader, writer = await asyncio.open_connection(at.hostname, at.port)
            writer.write(
                f"POST {way.path.format(length=length)} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode()
                + data
            )
            head = await reader.readuntil(b"\r\n\r\n")
            while part := await reader.read(65536):
                if not received:
                    streams.first.append(time.perf_counter() - began)
                streams.bytes += len(part)
                received = (received + part)[-2000:]
            writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        streams.failed += 1
        return
    streams.failed += not head.startswith(b"HTTP/1.1 200") or b"[DONE]" not in received


@contextmanager
def model_server() -> Iterator[str]:
    """Run the scripted model server; its address."""
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.model_server"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.kill()
        server.wait()


@contextmanager
def _litellm(command: str, model: str) -> Iterator[Way]:
    """Run LiteLLM's proxy, with a model for each length."""
    entries = [
        {
            "model_name": length,
            "litellm_params": {
                "model": "openai/scripted",
                "api_base": f"{model}/{length.replace('-', '/')}",
                "api_key": "sk-benchmark",
            },
        }
        for length in LENGTHS
    ]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        key = f"sk-{secrets.token_hex(24)}"
        config.write_text(json.dumps({"model_list": entries, "general_settings": {"master_key": key}}))
        with (Path(folder) / "log").open("wb") as log:
            proxy = subprocess.Popen(
                [command, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _wait_until_ready(f"{url}/health/liveliness")
            headers = {"Authorization": f"Bearer {key}"}
            pids = tuple(_with_children(proxy.pid))
            yield Way("LiteLLM", url, "/chat/completions", "{length}", headers, pids)
        finally:
            os.killpg(proxy.pid, signal.SIGKILL)
            proxy.wait()


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(url, timeout=2).is_success:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{url} does not answer")


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _with_children(int(child))


def _cpu_seconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
