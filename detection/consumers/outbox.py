"""What one socket still has to be told: bounded, coalesced per thing, and given up in favour of one look at everything.

Knows nothing of sockets and channel layers.
"""

from __future__ import annotations

import asyncio
from typing import Any

MAX_HINTS = 300


class Outbox:
    """Frames that wait to be sent to one reader, however slow it is.

    Parameters
    ----------
    max_hints
        How many different things may wait; one more turns all of them into one ``resync``.
    """

    def __init__(self, max_hints: int = MAX_HINTS) -> None:
        self._max_hints = max_hints
        self._hints: dict[tuple[str, str], dict[str, str]] = {}
        self._frames: list[dict[str, Any]] = []
        self._resync = False
        self._waiting = asyncio.Event()

    def add_hint(self, hint: dict[str, str]) -> None:
        """Have a change told; of several changes of one thing only the newest is."""
        if self._resync:
            return
        self._hints[hint["topic"], hint["id"]] = hint
        if len(self._hints) > self._max_hints:
            self.ask_for_resync()
        self._waiting.set()

    def ask_for_resync(self) -> None:
        """Have the page look at everything again instead of being told what changed."""
        self._hints.clear()
        self._resync = True
        self._waiting.set()

    def add_frame(self, frame: dict[str, Any]) -> None:
        """Have a frame sent as it is, before the hints."""
        self._frames.append(frame)
        self._waiting.set()

    async def wait(self) -> None:
        """Return as soon as anything is to be sent."""
        await self._waiting.wait()

    def take(self) -> list[dict[str, Any]]:
        """Return the frames that are due, and forget them."""
        frames, self._frames = self._frames, []
        if self._resync:
            frames.append({"type": "resync"})
        elif self._hints:
            frames.append({"type": "hints", "hints": [*self._hints.values()]})
        self._hints, self._resync = {}, False
        self._waiting.clear()
        return frames
