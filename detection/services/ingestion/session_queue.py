"""Limits how many requests of this process wait for the lock of one session, so that it cannot occupy all threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from detection.services.errors import SessionBusy
from detection.sql.deadlines import remaining_seconds

MAX_INSIDE: Final = 2
STUCK_SECONDS: Final = 0.75
"""A session that has given no verdict for this time while requests wait for its lock admits no others."""


@dataclass(slots=True)
class _Inside:
    """The requests that take the lock of one session, or wait for it."""

    count: int
    moved_at: float
    """When one of them last got its verdict, or the first one began."""


class SessionQueue:
    """Admits a few requests at a time to each session."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._sessions: dict[tuple[int, str], _Inside] = {}

    @contextmanager
    def place(self, project_id: int, external_id: str) -> Iterator[None]:
        """Occupy a place in the queue for the session's lock, during the block. Costs nothing without a deadline.

        Raises
        ------
        SessionBusy
            If the holders of the places do not get the lock in time.
        """
        if remaining_seconds() is None:
            yield
            return
        key = (project_id, external_id)
        self._enter(key)
        is_done = False
        try:
            yield
            is_done = True
        finally:
            self._leave(key, is_done=is_done)

    def _enter(self, key: tuple[int, str]) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                inside = self._sessions.setdefault(key, _Inside(0, now))
                if inside.count < MAX_INSIDE:
                    inside.count += 1
                    return
                patience = min(inside.moved_at + STUCK_SECONDS - now, remaining_seconds() or 0.0)
                if patience <= 0:
                    raise SessionBusy("Too many requests are waiting for this session. Try again.")
                self._changed.wait(patience)

    def _leave(self, key: tuple[int, str], *, is_done: bool) -> None:
        with self._changed:
            inside = self._sessions[key]
            inside.count -= 1
            if is_done:
                inside.moved_at = time.monotonic()
            if inside.count:
                self._changed.notify_all()  # nobody waits for a session with a place left
            else:
                del self._sessions[key]


session_queue = SessionQueue()
