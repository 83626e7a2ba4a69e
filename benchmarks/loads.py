"""Pages of a large installation as a browser loads them: largest contentful paint, the slowest click, and their weight.

Each page is loaded with an empty cache. A real click follows, on a control that answers in place; its figure is the
longest `event` entry of an interaction, from the click to the next paint. Bytes are those on the wire, compressed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from playwright.sync_api import Page

from benchmarks import history
from benchmarks.report import Figure
from benchmarks.stack import Stack

MUST_LCP_MS: Final = 2_000
MUST_INP_MS: Final = 200
MUST_HTML_KB: Final = 250
MUST_SCRIPT_KB: Final = 90
PAGES: Final[Mapping[str, tuple[str, str]]] = {
    "Live": ("live", "details.range > summary"),
    "Loops": ("loops", "details.range > summary"),
    "Incidents": ("incidents", "details.range > summary"),
    "Session of 10,000 calls": (f"sessions/{quote(history.LONG_RUN, safe='')}", "#session-strip a >> nth=2"),
}
"""Address, and what is clicked."""
_OBSERVE = """
window.paints = []; window.clicks = [];
new PerformanceObserver((list) => list.getEntries().forEach((one) => paints.push(one.startTime)))
    .observe({ type: "largest-contentful-paint", buffered: true });
new PerformanceObserver((list) => list.getEntries().forEach((one) => one.interactionId && clicks.push(one.duration)))
    .observe({ type: "event", durationThreshold: 16, buffered: true });
"""


def run(stack: Stack, page: Page) -> Iterator[Figure]:
    """Load pages of a stack with a large history."""
    yield from measure(f"{stack.url}/p/default", page)


def measure(base: str, page: Page) -> Iterator[Figure]:
    """Load pages and click on them; the page is signed in."""
    page.add_init_script(_OBSERVE)
    wire = page.context.new_cdp_session(page)
    kinds: dict[str, str] = {}
    weights: Counter[str] = Counter()
    wire.on("Network.responseReceived", lambda one: kinds.update({one["requestId"]: one["type"]}))

    def add(one: dict[str, Any]) -> None:
        weights[kinds.get(one["requestId"], "")] += int(one["encodedDataLength"])

    wire.on("Network.loadingFinished", add)
    wire.send("Network.enable")
    wire.send("Network.setCacheDisabled", {"cacheDisabled": True})
    for name, (path, control) in PAGES.items():
        page.goto(f"{base}/{path}")  # once to compile templates and read what the database keeps in memory
        page.wait_for_timeout(1_000)
        weights.clear()
        page.goto(f"{base}/{path}", wait_until="load")
        page.wait_for_timeout(1_000)
        yield Figure(f"{name}: HTML", weights["Document"] / 1024, "KB", MUST_HTML_KB)
        yield Figure(f"{name}: scripts", weights["Script"] / 1024, "KB", MUST_SCRIPT_KB)
        # The click ends the series of paints.
        page.locator(control).first.click()
        page.wait_for_timeout(1_500)
        yield Figure(f"{name}: largest contentful paint", max(page.evaluate("paints")), "ms", MUST_LCP_MS)
        # Below 16 ms there is no entry.
        yield Figure(f"{name}: click to paint", max([16, *page.evaluate("clicks")]), "ms", MUST_INP_MS)
