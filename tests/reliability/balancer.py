"""A load balancer that asks processes of `web` whether they are ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import httpx

from tests.support.plain_http import PLAIN


def readiness(url: str) -> int:
    """Return the status of the readiness probe; 0 if nobody answers."""
    try:
        return httpx.get(f"{url}/readyz", timeout=5, verify=PLAIN).status_code
    except httpx.TransportError:
        return 0


class Balancer:
    """Sends each request to the next address that was ready when it last looked, ten times a second."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self._ready: list[str] = []
        self._number, self._ended = count(), threading.Event()

    def __call__(self) -> str:
        ready = self._ready
        return ready[next(self._number) % len(ready)]

    @contextmanager
    def looking(self) -> Iterator[None]:
        self._look()
        thread = threading.Thread(target=self._keep_looking, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(30)

    def _keep_looking(self) -> None:
        while not self._ended.wait(0.1):
            self._look()

    def _look(self) -> None:
        self._ready = [url for url in self.addresses if readiness(url) == 200] or self._ready
