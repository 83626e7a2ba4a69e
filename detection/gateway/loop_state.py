"""What the requests of one event loop share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from detection.gateway.access import Access
from detection.gateway.guarding import Guarding
from detection.gateway.memory import Memory
from detection.gateway.request_body import BodyBudget
from detection.gateway.upstream import Upstreams
from detection.gateway.workers import DatabaseWorkers


class LoopState:
    """Threads, connections and memory of one event loop, and the number of its requests."""

    def __init__(self) -> None:
        self.workers = DatabaseWorkers()
        self.access = Access(self.workers)
        self.upstreams = Upstreams()
        self.bodies = BodyBudget()
        self.guarding = Guarding(self.workers)
        self.memory = Memory()
        self.exchanges = 0
        self._background: set[asyncio.Task[None]] = set()

    def run_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that no request waits for."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
