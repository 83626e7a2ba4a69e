"""What a browser makes of moving pages: layout shifts, long tasks, the way back after a restart, and a held call's way.

Headless Chromium opens pages of real servers while agents send calls. `LayoutShift` and `longtask` entries are the
browser's own; a layout shift within half a second after a click or key does not count, and nothing is clicked here. The
machine also runs the servers and the agents, so a long task is one with everything else going on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from benchmarks import history, loads
from benchmarks.load import Connection
from benchmarks.report import Figure
from benchmarks.stack import Stack
from development.screenshots import CHROMIUM_NAMES

EVENTS_PER_SECOND = 50
SIZES: dict[str, ViewportSize] = {
    "1440 px": {"width": 1440, "height": 900},
    "390 px": {"width": 390, "height": 844},
}
_OBSERVE = """() => {
    window.shifts = []; window.tasks = [];
    new PerformanceObserver(list => list.getEntries().forEach(one => one.hadRecentInput || shifts.push([one.startTime, one.value])))
        .observe({ type: "layout-shift" });
    new PerformanceObserver(list => list.getEntries().forEach(one => tasks.push(one.duration)))
        .observe({ type: "longtask" });
}"""
_CLS = """() => {
    // Cumulative layout shift: the worst session window, with gaps below a second and at most five seconds long.
    let worst = 0, sum = 0, first = -Infinity, last = -Infinity;
    for (const [at, value] of shifts) {
        if (at - last > 1000 || at - first > 5000) { sum = 0; first = at; }
        sum += value; last = at; worst = Math.max(worst, sum);
    }
    return worst;
}"""


def run(stack: Stack, seconds: float) -> Iterator[Figure]:
    """Measure the live list and a held call."""
    with _signed_in(stack) as page:
        yield from _moving_rows(stack, page, seconds)
        yield from _held_call(stack, page)


def run_loads(stack: Stack) -> Iterator[Figure]:
    """Measure loads of pages of a large history."""
    history.fill(stack)  # before the browser, whose event loop stays in this thread
    with _signed_in(stack) as page:
        yield from loads.run(stack, page)


@contextlib.contextmanager
def _signed_in(stack: Stack) -> Iterator[Page]:
    """Give a page of a browser that is signed in."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport=SIZES["1440 px"])
        for cookie in stack.session_cookie().split("; "):
            name, _, value = cookie.partition("=")
            context.add_cookies([{"name": name, "value": value, "url": stack.url}])
        yield context.new_page()
        browser.close()


def _moving_rows(stack: Stack, page: Page, seconds: float) -> Iterator[Figure]:
    for sessions, rows in ((80, ""), (500, "?rows=500")):
        agents = _Agents(stack, sessions)
        agents.start()
        time.sleep(sessions / EVENTS_PER_SECOND + 1)
        for size, viewport in SIZES.items():
            if rows and size != "1440 px":
                continue
            page.set_viewport_size(viewport)
            page.goto(f"{stack.url}/p/default/live{rows}")
            expect(page.locator("#live-state")).to_have_attribute("data-state", "live", timeout=15_000)
            page.wait_for_timeout(1_500)
            page.evaluate(_OBSERVE)
            sent, wide = agents.sent, page.evaluate("document.documentElement.scrollWidth - innerWidth")
            page.wait_for_timeout(1000 * seconds)
            rate = (agents.sent - sent) / seconds
            shown = page.locator("#live-rows tr").count()
            what = f"{shown} of {sessions} rows, {rate:.0f} events/s, {size}"
            yield Figure(f"layout shift, {what}", page.evaluate(_CLS), "CLS", 0.05, 0.0)
            tasks: list[float] = page.evaluate("tasks")
            yield Figure(f"longest task, {what}", max(tasks, default=0), "ms", 50 if not rows else None)
            yield Figure(f"long tasks, {what}", len(tasks), "tasks", 0, 0)
            yield Figure(f"cut off, {what}", max(0, wide), "px", 0, 0)
        agents.end()


def _held_call(stack: Stack, page: Page) -> Iterator[Figure]:
    """Time from the verdict of a held call to its card on a page that has nothing to do with it."""
    connection = Connection(stack.url, stack.headers)
    connection.send("PUT", "/api/v1/overrides/held/model", b'{"values":{"mode":"ask","max_repeats":4}}')
    page.set_viewport_size(SIZES["1440 px"])
    page.goto(f"{stack.url}/p/default/system")
    page.wait_for_timeout(2_000)
    waits, at_once = [], time.time_ns()
    for number in range(10):
        page.evaluate(
            """count => {
                const calls = document.getElementById("attention-calls");
                window.appeared = new Promise(resolve => {
                    const look = () => calls.children.length > count && resolve(Date.now());
                    new MutationObserver(look).observe(calls, { childList: true });
                });
            }""",
            number,
        )
        for call in range(4):
            connection.send(
                "POST",
                "/api/v1/guard",
                _call(f"held-{at_once}-{number}", call, backend="held", model="model"),
            )
        at = time.time()
        waits.append(
            page.evaluate("Promise.race([appeared, new Promise(end => setTimeout(end, 10000, 0))])") / 1000
            - at
        )
    yield Figure("held call to its card on another page, worst of 10", max(waits), "s", 1.0, 0.5)
    connection.close()


def _call(session: str, number: int, **names: str) -> bytes:
    import orjson

    call = {"call_id": f"c{number}", "tool": "search_web", "arguments": {"q": "reset password"}}
    return orjson.dumps({"session": session, "agent": "bench", "calls": [call], **names})


class _Agents(threading.Thread):
    """Agents that call different tools, one session after the other, at a fixed rate; old sessions end and new ones begin."""

    def __init__(self, stack: Stack, sessions: int) -> None:
        super().__init__(daemon=True)
        self._stack, self._sessions = stack, sessions
        self.sent, self._is_over = 0, False

    def run(self) -> None:
        """Send until the end."""
        import orjson

        connection = Connection(self._stack.url, self._stack.headers)
        begun, run = time.monotonic(), time.time_ns()
        while not self._is_over:
            number = self.sent
            # Every tenth call begins a session.
            slot = number % self._sessions
            name = f"{run}-{slot}-{number // (10 * self._sessions) if slot % 10 == 0 else 0}"
            call: dict[str, Any] = {
                "call_id": f"m{number}",
                "tool": ("read_file", "search_web", "write_file")[number % 3],
                "arguments": {"path": f"/src/{number % 7}"},
            }
            body = {
                "session": name,
                "agent": f"agent-{slot % 9}",
                "backend": "openai",
                "model": "gpt-5",
                "calls": [call],
            }
            connection.send("POST", "/api/v1/guard", orjson.dumps(body))
            self.sent += 1
            time.sleep(max(0, begun + self.sent / EVENTS_PER_SECOND - time.monotonic()))
        connection.close()

    def end(self) -> None:
        """Stop sending."""
        self._is_over = True
        self.join(10)
