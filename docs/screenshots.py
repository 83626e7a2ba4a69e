# ruff: noqa: INP001
"""Takes the pictures of screens in `images/` anew: `.venv/bin/python docs/screenshots.py`.

Starts an installation of its own in a temporary folder, plays the demo and one loop that climbs its whole ladder, and needs
Chromium; `CHROMIUM` may name the program. Takes about a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
START_SECONDS, DEMO_SECONDS = 120.0, 40.0
SIZE = {"width": 1440, "height": 900}


def main() -> None:
    """Start, play, take the pictures, and end what was started."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        up = [
            sys.executable,
            "manage.py",
            "up",
            "--data",
            f"{folder}/data",
            "--port",
            "0",
            "--ready-file",
            str(ready),
        ]
        server = subprocess.Popen(up, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            _take(_wait_for(ready, server))
        finally:
            server.terminate()
            server.wait(30)


def _wait_for(ready: Path, server: subprocess.Popen[bytes]) -> dict[str, str]:
    """Return addresses, key and sign-in of the installation."""
    end = time.monotonic() + START_SECONDS
    while not (ready.exists() and ready.read_text()):
        if server.poll() is not None or time.monotonic() > end:
            raise SystemExit("The installation did not start.")
        time.sleep(0.5)
    found: dict[str, str] = json.loads(ready.read_text())
    return found


def _take(site: dict[str, str]) -> None:
    with httpx.Client(
        base_url=site["url"], headers={"Authorization": f"Bearer {site['api_key']}"}, timeout=20
    ) as client:
        incident = _loop(client)
        demo = subprocess.Popen(
            [
                sys.executable,
                "manage.py",
                "demo",
                "--url",
                site["url"],
                "--key",
                site["api_key"],
                "--speed",
                "4",
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        try:
            time.sleep(DEMO_SECONDS)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
                page = browser.new_page(viewport=SIZE, color_scheme="light")
                _sign_in(page, site)
                _shoot(page, f"{site['url']}/p/default/", IMAGES / "live-light.png", whole=False)
                _shoot(
                    page,
                    f"{site['url']}/p/default/incidents/{incident}",
                    IMAGES / "incident-light.png",
                    whole=True,
                )
                browser.close()
        finally:
            demo.terminate()
            demo.wait(10)


def _loop(client: httpx.Client) -> str:
    """Repeat one call until the session is stopped; return the incident."""
    results: list[dict[str, Any]] = []
    for number in range(1, 9):
        call = {"tool": "search_web", "arguments": {"q": "reset password"}, "call_id": f"c{number}"}
        body = {
            "session": "triage/reset-password",
            "agent": "triage",
            "model": "openai/gpt-5",
            "calls": [call],
        }
        answer = client.post("/api/v1/guard", json={**body, "results": results}).raise_for_status().json()
        runs = answer["verdicts"][0]["decision"] in ("allow", "warn")
        results = [{"call_id": f"c{number}", "content": "0 hits"}] if runs else []
        time.sleep(0.7)
    return str(client.get("/api/v1/incidents").raise_for_status().json()["items"][0]["id"])


def _chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if not found:
        raise SystemExit("No Chromium was found; CHROMIUM may name the program.")
    return found


def _sign_in(page: Page, site: dict[str, str]) -> None:
    page.goto(f"{site['url']}/sign-in")
    page.fill("input[name=username]", site["username"])
    page.fill("input[name=password]", site["password"])
    page.press("input[name=password]", "Enter")
    page.wait_for_url("**/p/**")


def _shoot(page: Page, address: str, path: Path, *, whole: bool) -> None:
    page.goto(address)
    page.wait_for_timeout(1500)
    page.screenshot(path=path, full_page=whole)


if __name__ == "__main__":
    main()
