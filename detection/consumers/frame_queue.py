"""Frames that wait to be sent to one socket: bounded, one hint per object, replaced by a resync above the limit."""

from __future__ import annotations

import asyncio

MAX_HINTS = 300


class FrameQueue:
    """Frames that wait to be sent to one reader, however slow it is.

    Parameters
    ----------
    max_hints
        Maximum number of waiting objects; one more replaces all hints with one ``resync``.
    """

    def __init__(self, max_hints: int = MAX_HINTS) -> None:
        self._max_hints = max_hints
        self._hints: dict[tuple[str, str], dict[str, str]] = {}
        self._frames: list[dict[str, object]] = []
        self._resync = False
        self._waiting = asyncio.Event()

    def add_hint(self, hint: dict[str, str]) -> None:
        """Add a hint; of several hints for one object, the newest is sent."""
        if self._resync:
            return
        self._hints[hint["topic"], hint["id"]] = hint
        if len(self._hints) > self._max_hints:
            self.request_resync()
        self._waiting.set()

    def request_resync(self) -> None:
        """Replace all hints by a request to reload everything."""
        self._hints.clear()
        self._resync = True
        self._waiting.set()

    def add_frame(self, frame: dict[str, object]) -> None:
        """Add a frame to be sent as it is, before the hints."""
        self._frames.append(frame)
        self._waiting.set()

    async def wait(self) -> None:
        """Return when there is a frame to send."""
        await self._waiting.wait()

    def take(self) -> list[dict[str, object]]:
        """Return and remove the waiting frames."""
        frames, self._frames = self._frames, []
        if self._resync:
            frames.append({"type": "resync"})
        elif self._hints:
            frames.append({"type": "hints", "hints": [*self._hints.values()]})
        self._hints, self._resync = {}, False
        self._waiting.clear()
        return frames
