"""Time to detect a loop after each process was killed or frozen."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks.report import Figure
from benchmarks.start import Started, started

LONGEST_SECONDS = 120.0
PERIOD_SECONDS = 0.1
CALLS = 4
KILLING_SECONDS = 20.0
PAUSE_SECONDS = 8.0
"""Between two cases, so that each begins with all processes."""
PROGRAMS = {
    "web": "loopguard_site.rsgi",
    "live": "loopguard_site live",
    "beat": "loopguard_site beat",
    "worker": "loopguard_site worker",
    "Valkey": "valkey-server",
    "PostgreSQL": "postgres",
}
CASES = [
    ("without a kill", (), signal.SIGKILL),
    *((f"{name} killed", (name,), signal.SIGKILL) for name in PROGRAMS),
    ("worker frozen", ("worker",), signal.SIGSTOP),
    ("worker and beat killed", ("worker", "beat"), signal.SIGKILL),
    ("all processes and servers killed", tuple(PROGRAMS), signal.SIGKILL),
]


def run() -> Iterator[Figure]:
    """Start LoopGuard, kill its processes one after the other, and measure the time until the next loop is found."""
    with started() as loopguard:
        key = {"Authorization": f"Bearer {loopguard.ready['api_key']}"}
        with httpx.Client(base_url=f"{loopguard.ready['url']}/api/v1", headers=key, timeout=5) as client:
            for number, (name, programs, how) in enumerate(CASES):
                if _send(loopguard, programs, how) != set(programs):
                    raise RuntimeError(f"not all of {programs} ran")
                yield _figure(f"to an incident, {name}", _time_to_detect(client, f"run-{number}"))
                time.sleep(PAUSE_SECONDS)
            ended = threading.Event()
            killer = threading.Thread(target=_kill_workers, args=(loopguard, ended))
            _send(loopguard, ("worker",), signal.SIGKILL)
            killer.start()
            yield _figure(
                "to an incident, worker killed whenever it runs", _time_to_detect(client, "run-last")
            )
            ended.set()
            killer.join()


def _figure(name: str, seconds: float) -> Figure:
    return Figure(name, seconds, "s", 15)


def _kill_workers(loopguard: Started, ended: threading.Event) -> None:
    deadline = time.monotonic() + KILLING_SECONDS
    while not ended.wait(PERIOD_SECONDS) and time.monotonic() < deadline:
        _send(loopguard, ("worker",), signal.SIGKILL)


def _send(loopguard: Started, programs: tuple[str, ...], how: signal.Signals) -> set[str]:
    """Signal the processes of these programs; return those that ran."""
    found = set()
    for pid in json.loads((loopguard.data / "running.json").read_text())["processes"]:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            for name in programs:
                if PROGRAMS[name] in command:
                    os.kill(pid, how)
                    found.add(name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _time_to_detect(client: httpx.Client, session: str) -> float:
    """Send the calls of a loop until they are accepted, and wait for its incident."""
    before = time.perf_counter()
    events = [
        {
            "id": f"{session}-{number}",
            "type": "call",
            "session": session,
            "call_id": f"c{number}",
            "tool": "search",
            "arguments": {"q": "again"},
        }
        for number in range(CALLS)
    ]
    is_sent = False
    while time.perf_counter() - before < LONGEST_SECONDS:
        try:
            if not is_sent:
                is_sent = client.post("/events", json={"events": events}).status_code == 202
            elif client.get("/incidents", params={"session": session}).json().get("items"):
                return time.perf_counter() - before
        except (httpx.TransportError, ValueError):
            pass
        time.sleep(PERIOD_SECONDS)
    return float("inf")
