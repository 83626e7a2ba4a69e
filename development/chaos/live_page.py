"""A live page that stays open: a signed-in socket, and the rows that it fetches, as the page's script does."""

from __future__ import annotations

import html
import json
import random
import re
import threading
import time
from typing import Any

import httpx
import websockets.exceptions
import websockets.sync.client
from websockets.typing import Origin

ROWS = 200
FETCH_PAUSE_SECONDS = (0.15, 0.3)
RETRY_SECONDS, POLL_SECONDS, SAFETY_POLL_SECONDS = 1.5, 5.0, 15.0
"""As in `static/js/link.js` and `live.js`."""
PING_SECONDS = 1.0
REQUEST_SECONDS = 10.0
_VARIABLE = re.compile(
    r'<td[^>]*class="num (?:hide-s hide-l c-rate|c-age)">.*?</td>|<time\b.*?</time>', re.DOTALL
)
"""Rates and ages."""
_TAG = re.compile(r"<[^>]*>")
_SESSION = re.compile(r'data-session="([^"]*)"')
_STATE = re.compile(r'data-state="([^"]*)"')


class LivePage:
    """The page of one project.

    Parameters
    ----------
    cookies
        Of a signed-in member.
    """

    def __init__(self, url: str, live_url: str, project: str, cookies: httpx.Cookies) -> None:
        self._url, self._project, self._cookies = url, project, cookies
        self._socket_url = f"ws{live_url.removeprefix('http')}/ws/p/{project}/"
        self._rows: dict[str, str] = {}
        self._cursor = ""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.pong_at = self._polled_at = 0.0
        self._is_lost = True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._client = httpx.Client(cookies=cookies, timeout=REQUEST_SECONDS)

    def start(self) -> None:
        """Open the page."""
        self._thread.start()

    def stop(self) -> None:
        """Close the page."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(REQUEST_SECONDS + 5)
        self._client.close()

    def answered_since(self, moment: float) -> bool:
        """Return whether the socket has answered a ping that was sent after this moment of the monotonic clock."""
        return self.pong_at > moment

    def shown(self) -> dict[str, tuple[str, str]]:
        """Return state and text of each row, by session, without ages."""
        with self._lock:
            return dict(map(_readable, self._rows.values()))

    def read_anew(self) -> dict[str, tuple[str, str]]:
        """Return what a page that is opened now shows."""
        answer = self._client.get(self._rows_url(""), timeout=REQUEST_SECONDS)
        answer.raise_for_status()
        return dict(_readable(row["html"]) for row in answer.json()["rows"])

    def _rows_url(self, cursor: str) -> str:
        return f"{self._url}/p/{self._project}/session/rows?rows={ROWS}&since={cursor}"

    def _run(self) -> None:
        cookie = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        tries = 0
        while not self._stopped.is_set():
            try:
                with websockets.sync.client.connect(
                    self._socket_url, origin=Origin(self._url), additional_headers={"Cookie": cookie},
                    open_timeout=5, close_timeout=1, ping_interval=None,
                ) as socket:  # fmt: skip
                    tries = 0
                    self._follow(socket)
            except (OSError, TimeoutError, websockets.exceptions.WebSocketException):
                if time.monotonic() - self._polled_at > POLL_SECONDS:
                    self._fetch()
                tries += 1
                self._stopped.wait(min(2.0, 0.25 * 2**tries) * random.uniform(0.5, 1.0))

    def _follow(self, socket: websockets.sync.client.ClientConnection) -> None:
        """Read frames; fetch after those that tell of a change, and by the clock, as hints may be lost."""
        pinged_at, is_broker_up = 0.0, True
        while not self._stopped.is_set():
            now = time.monotonic()
            if now - pinged_at > PING_SECONDS:
                pinged_at = now
                socket.send('{"type": "ping"}')
            period = SAFETY_POLL_SECONDS if is_broker_up else POLL_SECONDS
            if now - self._polled_at > (RETRY_SECONDS if self._is_lost else period):
                self._fetch()
            try:
                frame = json.loads(socket.recv(timeout=0.25))
            except TimeoutError:
                continue
            if frame["type"] == "pong":
                self.pong_at = pinged_at
            elif frame["type"] == "beat":
                is_broker_up = frame["broker"]
            elif frame["type"] in ("ready", "resync", "hints"):
                self._stopped.wait(random.uniform(*FETCH_PAUSE_SECONDS))
                self._fetch()

    def _fetch(self) -> None:
        """Fetch what has changed."""
        self._polled_at = time.monotonic()
        try:
            answer = self._client.get(self._rows_url(self._cursor))
            self._apply(answer.raise_for_status().json())
            self._is_lost = False
        except (httpx.HTTPError, ValueError):
            self._is_lost = True

    def _apply(self, changes: dict[str, Any]) -> None:
        with self._lock:
            if changes["reset"]:
                self._rows.clear()
            self._rows |= {row["id"]: row["html"] for row in changes["rows"]}
            for number in changes["removed"]:
                self._rows.pop(number, None)
            self._cursor = changes["cursor"]


def _readable(row: str) -> tuple[str, tuple[str, str]]:
    """Return session, state and text of a row's markup."""
    session, state = _SESSION.search(row), _STATE.search(row)
    shown = _VARIABLE.sub("", row)
    text = " ".join(html.unescape(_TAG.sub(" ", shown)).split())
    labels = " ".join(re.findall(r'aria-label="([^"]*)"', shown))
    text = re.sub(r"by key:\w+", "by key", text)
    return (session[1] if session else ""), ((state[1] if state else ""), f"{text} {labels}")
