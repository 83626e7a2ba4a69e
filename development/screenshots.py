"""Takes the pictures of screens in `docs/images` anew.

Starts an installation of its own in a temporary folder, plays the demo, a long run, a loop that climbs its whole ladder
and a held call, and photographs screens in the sizes and themes that the documentation shows. Takes about two minutes.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

START_SECONDS, DEMO_SECONDS, SETTLE_MS = 120.0, 40.0, 1_500
SIZES = {1440: {"width": 1440, "height": 900}, 390: {"width": 390, "height": 844}}
PHONE = 390
"""Width of the pictures that are taken as a phone shows the page: with touch, and scroll bars over it."""
QUALITY = 82
USAGE = {"input_tokens": 2400, "output_tokens": 60, "cost_usd": 0.004}
MAX_TOTAL_BYTES = 1_500_000
LONG_RUN, LONG_RUN_CALLS, BATCH, ATTEMPTS = "nightly/migration", 1_800, 200, 10
CHROMIUM_NAMES = (
    "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
)  # fmt: skip
"""Programs to look for; the first draws the same pages at half the processor time."""


@dataclass(frozen=True)
class Picture:
    """A screen to photograph; `name` is that of its files without size and theme."""

    name: str
    path: str
    themes: tuple[str, ...]
    widths: tuple[int, ...]
    is_whole: bool = False


def take(root: Path) -> int:
    """Start, play, take the pictures, and end what was started; return an exit status."""
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if not chromium:
        names = ", ".join(CHROMIUM_NAMES)
        print(
            f"The pictures need Chromium: none of {names} is on PATH, and CHROMIUM is not set.",
            file=sys.stderr,
        )
        return 1
    images = root / "docs" / "images"
    with tempfile.TemporaryDirectory() as folder, _installation(root, Path(folder)) as site:
        pictures = _play(site)
        with _demo(root, site), sync_playwright() as playwright:
            time.sleep(DEMO_SECONDS)
            flags = ["--no-sandbox"] if os.geteuid() == 0 else []
            # Hidden scroll bars would leave their space empty.
            browser = playwright.chromium.launch(
                executable_path=chromium, args=flags, ignore_default_args=["--hide-scrollbars"]
            )
            taken = Path(folder)
            for width in SIZES:
                for theme in ("light", "dark"):
                    _photograph(browser, site, [one for one in pictures if width in one.widths and theme in one.themes],
                                width, theme, taken)  # fmt: skip
            browser.close()
        for old in images.glob("*-*-*.webp"):
            old.unlink()
        for new in taken.glob("*.webp"):
            shutil.copy(new, images)
    total = sum(path.stat().st_size for path in images.glob("*.webp"))
    print(f"{len([*images.glob('*.webp')])} pictures, {total / 1000:,.0f} kB")
    return int(total > MAX_TOTAL_BYTES)


@contextmanager
def _installation(root: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Run LoopGuard on free ports; yields addresses, key and sign-in."""
    ready = folder / "ready.json"
    up = ["manage.py", "up", "--data", f"{folder}/data", "--port", "0", "--ready-file", str(ready)]
    server = subprocess.Popen([sys.executable, *up], cwd=root, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_SECONDS
        while not (ready.exists() and ready.read_text()):
            if server.poll() is not None or time.monotonic() > end:
                raise SystemExit("The installation did not start.")
            time.sleep(0.5)
        yield json.loads(ready.read_text())
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def _demo(root: Path, site: dict[str, str]) -> Iterator[None]:
    play = ["manage.py", "demo", "--url", site["url"], "--key", site["api_key"], "--speed", "4"]
    demo = subprocess.Popen([sys.executable, *play], cwd=root, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        demo.terminate()
        demo.wait(10)


def _play(site: dict[str, str]) -> list[Picture]:
    """Send what the demo does not have, and return the pictures to take."""
    headers = {"Authorization": f"Bearer {site['api_key']}"}
    with httpx.Client(base_url=f"{site['url']}/api/v1", headers=headers, timeout=30) as client:
        for agent, values in (
            ("migrator", {"preset": "advisory", "budget_enabled": False}),
            ("deployer", {"preset": "interactive"}),
        ):
            client.put(
                f"/agent-overrides/{agent}", json={"values": values, "note": "for pictures"}
            ).raise_for_status()
        _send_long_run(client)
        _repeat(client, "release/eu-2", "deployer", "deploy", {"target": "eu-2"}, "timeout", 4)
        _repeat(client, "triage/reset-password", "triage", "search_web", {"q": "reset password"}, "0 hits", 8)
        found = client.get("/incidents", params={"q": "agent:triage"}).raise_for_status().json()["items"]
    project, loop = "/p/default", next(one for one in found if one["session"] == "triage/reset-password")
    both, wide, narrow = ("light", "dark"), (1440,), (390,)
    return [
        Picture("live", f"{project}/sessions?q=", both, wide),
        Picture("live", f"{project}/sessions?q=", ("dark",), narrow),
        Picture("session", f"{project}/sessions/{LONG_RUN}?calls=200&from=621", both, wide),
        Picture("session", f"{project}/sessions/{LONG_RUN}", ("light",), narrow),
        Picture("loop", f"{project}/incidents/{loop['id']}", ("light",), wide, is_whole=True),
        Picture("approvals", f"{project}/held", ("light",), narrow),
    ]


def _send_long_run(client: httpx.Client) -> None:
    """Send a run with honest work, a repeat, a cycle, a poll and errors."""
    chance = random.Random(11)  # noqa: S311 - the same run each time
    words = ("orders", "invoices", "tenants", "shards", "queues", "ledgers", "archives")
    calls: list[tuple[str, dict[str, Any], str, bool]] = []
    while len(calls) < LONG_RUN_CALLS:
        for _ in range(chance.randint(90, 260)):
            tool, number = chance.choice(("read_file", "edit_file", "run_tests", "query")), len(calls)
            is_error = chance.random() < 0.05
            calls.append(
                (tool, {"path": f"{chance.choice(words)}/{number}.sql"}, f"{number} rows read", is_error)
            )
        kind = len(calls) % 4
        calls += [_stuck(kind, lap) for lap in range(chance.randint(24, 70))]
    events: list[dict[str, Any]] = []
    for number, (tool, arguments, content, is_error) in enumerate(calls[:LONG_RUN_CALLS]):
        names = {"session": LONG_RUN, "agent": "migrator", "backend": "openai", "model": "gpt-5"}
        call_id = f"m{number}"
        events.append(
            {
                "type": "call",
                **names,
                "tool": tool,
                "arguments": arguments,
                "call_id": call_id,
                "id": call_id,
                "usage": USAGE,
            }
        )
        events.append(
            {
                "type": "result",
                "session": LONG_RUN,
                "call_id": call_id,
                "content": content,
                "is_error": is_error,
            }
        )
    for start in range(0, len(events), BATCH):
        _send(client, events[start : start + BATCH])
    for child in ("schema", "backfill"):
        session = f"{LONG_RUN}/{child}"
        call = {
            "type": "call",
            "session": session,
            "parent_session": LONG_RUN,
            "agent": "migrator",
            "tool": "plan",
        }
        _send(client, [call | {"arguments": {"part": child}, "id": child}])


def _stuck(kind: int, lap: int) -> tuple[str, dict[str, Any], str, bool]:
    """Return a call of a repeat, a cycle, a poll or a row of errors."""
    if kind == 0:
        return "search_web", {"q": "lock timeout"}, "0 results", False
    if kind == 1:
        pair = (
            ("kubectl_get", {"pod": "db-0"}, "CrashLoopBackOff"),
            ("kubectl_apply", {"file": "db.yaml"}, "unchanged"),
        )
        return *pair[lap % 2], False
    if kind == 2:
        return "get_job_status", {"job": 7}, f"{lap} % done", False
    return "migrate", {"step": "add-index"}, "error: relation is locked", True


def _send(client: httpx.Client, events: list[dict[str, Any]]) -> None:
    """Send events, again where the server is busy: their ids make that safe."""
    for attempt in range(ATTEMPTS):
        answer = client.post("/events", json={"events": events})
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or attempt == ATTEMPTS - 1:
            answer.raise_for_status()
            return
        time.sleep(1)


def _repeat(
    client: httpx.Client,
    session: str,
    agent: str,
    tool: str,
    arguments: dict[str, Any],
    content: str,
    times: int,
) -> None:
    """Ask for the same call again and again, and report the same result while it may run."""
    results: list[dict[str, Any]] = []
    for number in range(1, times + 1):
        call = {"tool": tool, "arguments": arguments, "call_id": f"c{number}", "usage": USAGE}
        body = {
            "session": session,
            "agent": agent,
            "model": "openai/gpt-5",
            "calls": [call],
            "results": results,
        }
        verdict = client.post("/guard", json=body).raise_for_status().json()["verdicts"][0]
        is_run = verdict["decision"] in ("allow", "warn")
        results = [{"call_id": f"c{number}", "content": content}] if is_run else []
        time.sleep(0.7)


def _photograph(
    browser: Browser, site: dict[str, str], pictures: list[Picture], width: int, theme: str, images: Path
) -> None:
    """Take the pictures of one size and theme."""
    if not pictures:
        return
    context = browser.new_context(
        viewport=SIZES[width],  # type: ignore[arg-type]
        color_scheme=theme,  # type: ignore[arg-type]
        is_mobile=width == PHONE,
        has_touch=width == PHONE,
        reduced_motion="reduce",
        timezone_id="UTC",
        locale="en-GB",
    )
    page = context.new_page()
    page.goto(f"{site['url']}/sign-in")
    page.fill("input[name=username]", site["username"])
    page.fill("input[name=password]", site["password"])
    page.press("input[name=password]", "Enter")
    page.wait_for_url("**/p/**")
    for one in pictures:
        page.goto(f"{site['url']}{one.path}")
        page.wait_for_timeout(SETTLE_MS)
        (images / f"{one.name}-{width}-{theme}.webp").write_bytes(_as_webp(page, is_whole=one.is_whole))
    context.close()


def _as_webp(page: Page, *, is_whole: bool) -> bytes:
    """Return the page as WebP, a quarter of the bytes of a PNG; only the debugger's protocol offers it."""
    session = page.context.new_cdp_session(page)
    usual = page.viewport_size
    if is_whole and usual:
        # A window of the whole height: what stays at its bottom is at that of the page.
        height = session.send("Page.getLayoutMetrics")["cssContentSize"]["height"]
        page.set_viewport_size({"width": usual["width"], "height": ceil(height)})
    data = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})["data"]
    if is_whole and usual:
        page.set_viewport_size(usual)
    return base64.b64decode(data)
