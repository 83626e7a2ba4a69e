"""What others notice of clients that take up as much of `web` and `live` as they can; each beside a quiet time."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.gateway import CREATE_BACKEND, model_server
from benchmarks.report import Figure, percentile
from benchmarks.stack import ROOT, Stack
from loopguard_site.live.server import raise_file_limit

SOCKETS = 150
FRAME = 16 * 2**20
UNFINISHED = 5_000
QUIET_SECONDS, BUSY_SECONDS = 8.0, 12.0
PAUSE_SECONDS = 0.02
MUST_MS = 100
SLOW_STREAM = "100-10"
"""Events of an answer, and how many a second."""


def run() -> Iterator[Figure]:
    """Measure; takes two minutes."""
    with model_server() as model:
        settings = {
            "LOOPGUARD_GATEWAY_UPSTREAMS": model,
            "LOOPGUARD_ALERT_ALLOWED_NETWORKS": "127.0.0.0/8",
        }
        with Stack(settings) as stack:
            backend = [SLOW_STREAM, f"{model}/{SLOW_STREAM.replace('-', '/')}"]
            command = [sys.executable, "-c", CREATE_BACKEND, *backend]
            subprocess.run(command, cwd=ROOT, env=stack.environment, check=True)
            yield from _memory(stack)
            yield from _unfinished(stack)
            yield from _bodies(stack)


# Memory


def _memory(stack: Stack) -> Iterator[Figure]:
    before = _resident_bytes(stack.live_pid)
    peak = [before]
    with _attack("sockets", stack.live_url, stack.url) as attack:
        while attack.poll() is None:
            peak.append(_resident_bytes(stack.live_pid))
            time.sleep(0.05)
    time.sleep(2)
    after = _resident_bytes(stack.live_pid)
    label = f"memory of `live`, {SOCKETS} sockets with an invalid cookie"
    yield Figure(f"{label}, most more", (max(peak) - before) / 2**20, "MiB", 64)
    yield Figure(f"{label}, left when they are gone", (after - before) / 2**20, "MiB", 32)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Delays


class Watch:
    """Requests a page again and again, or reads a stream, and keeps how long each wait was."""

    def __init__(self, url: str, path: str, headers: dict[str, str], body: bytes = b"") -> None:
        self.waits: list[float] = []
        self.failed = 0
        self._at, self._path, self._headers, self._body = urlsplit(url), path, headers, body
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ended.is_set():
            connection = HTTPConnection(self._at.hostname or "", self._at.port, timeout=30)
            try:
                self._stream(connection) if self._body else self._pages(connection)
            except OSError:
                self.failed += 1
            finally:
                connection.close()

    def _pages(self, connection: HTTPConnection) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            began = time.perf_counter()
            connection.request("GET", self._path, headers=self._headers)
            response = connection.getresponse()
            response.read()
            self.waits.append(time.perf_counter() - began)
            self.failed += response.status != 200
            if response.will_close:
                return

    def _stream(self, connection: HTTPConnection) -> None:
        connection.request("POST", self._path, self._body, self._headers)
        response = connection.getresponse()
        self.failed += response.status != 200
        while not self._ended.is_set():
            began = time.perf_counter()
            if not response.read1(65536):
                return
            self.waits.append(time.perf_counter() - began)


@contextmanager
def _watches(stack: Stack) -> Iterator[dict[str, Watch]]:
    key = {"LoopGuard-Key": stack.shown["api_key"], "Authorization": "Bearer sk-benchmark"}
    message = {"role": "user", "content": "Read the files."}
    body = json.dumps({"model": "scripted", "stream": True, "messages": [message]}).encode()
    path = f"/gateway/{SLOW_STREAM}/chat/completions"
    with ExitStack() as running:
        yield {
            "page of `web`": running.enter_context(
                Watch(stack.url, "/p/default/live", {"Cookie": stack.session_cookie()})
            ),
            "`/healthz` of `live`": running.enter_context(Watch(stack.live_url, "/healthz", {})),
            "event of a stream": running.enter_context(Watch(stack.live_url, path, key, body)),
        }


def _compared(label: str, quiet: dict[str, Watch], busy: dict[str, Watch]) -> Iterator[Figure]:
    """Return how much longer than usual the waits were."""
    for name, watch in busy.items():
        usual = statistics.median(quiet[name].waits)
        p99, longest = percentile(watch.waits, 0.99) - usual, max(watch.waits) - usual
        unloaded = max(quiet[name].waits) - usual
        yield Figure(f"{label}: {name}, p99 more", p99 * 1000, "ms")
        yield Figure(f"{label}: {name}, longest more", longest * 1000, "ms", MUST_MS)
        yield Figure(f"{label}: {name}, longest more without them", unloaded * 1000, "ms")
        yield Figure(f"{label}: {name}, failed", watch.failed, "", 0)


def _unfinished(stack: Stack) -> Iterator[Figure]:
    for name, url in (("live", stack.live_url), ("web", stack.url)):
        with _watches(stack) as quiet:
            time.sleep(QUIET_SECONDS)
        with _watches(stack) as busy, _attack("unfinished", url):
            time.sleep(BUSY_SECONDS)
        yield from _compared(f"{UNFINISHED:,} unfinished requests to `{name}`", quiet, busy)


def _bodies(stack: Stack) -> Iterator[Figure]:
    with _watches(stack) as quiet:
        time.sleep(QUIET_SECONDS)
    for name in BODIES:
        with _watches(stack) as busy, _attack(name, stack.live_url, stack.shown["api_key"]) as attack:
            attack.wait(120)
        yield from _compared(name, quiet, busy)


# The clients, in a process of their own


@contextmanager
def _attack(name: str, url: str, more: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run clients of a kind; they may need a key, or the address of the pages."""
    command = [sys.executable, "-m", "benchmarks.exposure", name, url, more]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL) as attack:
        try:
            yield attack
        finally:
            attack.kill()


async def _socket(host: str, port: int, origin: str) -> None:
    """Open a socket with an invalid cookie, and send one large frame as far as it is taken."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(8):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(
                f"GET /ws/p/default/ HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {origin}\r\nConnection: Upgrade\r\n"
                f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n"
                f"Cookie: loopguard={'a' * 32}\r\n\r\n".encode()
            )
            writer.write(b"\x82\xff" + FRAME.to_bytes(8, "big") + bytes(4))
            for _ in range(FRAME // 2**16):
                writer.write(bytes(2**16))
                await writer.drain()
            await asyncio.sleep(8)


async def _sockets(host: str, port: int, origin: str) -> None:
    await asyncio.gather(*(_socket(host, port, origin) for _ in range(SOCKETS)))


async def _hold(host: str, port: int) -> None:
    """Keep an unfinished request open, and open another one when it is closed."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX-Unfinished: ")
            await reader.read()
            writer.close()
        await asyncio.sleep(1)


async def _unfinished_requests(host: str, port: int) -> None:
    await asyncio.gather(*(_hold(host, port) for _ in range(UNFINISHED)))


def _conversation(number: int, text: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}] * number}).encode()


BODIES = {
    "a million messages, 36 MB": lambda: _conversation(1_000_000, "x")[: 31 * 2**20],
    "10,000 messages": lambda: _conversation(10_000, "some words"),
    "one text of 28 MB": lambda: _conversation(1, "some words " * 2_500_000),
    "one text of escapes, 28 MB": lambda: _conversation(1, "\n" * 14_000_000),
}


async def _post(host: str, port: int, key: str, body: bytes) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    path = f"/gateway/{SLOW_STREAM}/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nLoopGuard-Key: {key}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    with suppress(ConnectionError):
        await reader.read()
    writer.close()


async def _posts(name: str, host: str, port: int, key: str) -> None:
    body = BODIES[name]()
    for _ in range(2):
        await _post(host, port, key, body)


def main(name: str, url: str, more: str) -> None:
    """Do what a client of this kind does, until the process is ended."""
    raise_file_limit()
    at = urlsplit(url)
    host, port = at.hostname or "", at.port or 80
    if name == "sockets":
        asyncio.run(_sockets(host, port, more))
    elif name == "unfinished":
        asyncio.run(_unfinished_requests(host, port))
    else:
        asyncio.run(_posts(name, host, port, more))


if __name__ == "__main__":
    main(*sys.argv[1:])
