"""State shared by the requests of one event loop."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from detection.gateway.access import Access
from detection.gateway.client import Client
from detection.gateway.errors import GatewayError
from detection.gateway.guarding import Guarding
from detection.gateway.histories import Histories
from detection.gateway.memory import Memory, Recent, RecentBySize
from detection.gateway.protocols.answers import Message, ToolCall
from detection.gateway.request_body import BodyBudget
from detection.gateway.traffic import TrafficCounter
from detection.gateway.upstream import Upstreams
from detection.gateway.workers import DatabaseWorkers
from detection.web.known_keys import MAX_UNTRUSTED
from detection.web.unfinished_bodies import UnfinishedBodies

Result = TypeVar("Result")
MAX_EXCHANGES: Final = 2_000
"""Requests with a right that are served at a time."""
UNTRUSTED_THREADS: Final = 2
"""For look-ups of keys that are not known to be valid."""
LARGE_BYTES: Final = 128 * 1024
"""Work on a smaller document takes the event loop less than 2 ms."""
HUGE_BYTES: Final = 4 * 1024 * 1024
"""Larger documents wait for one another, and smaller ones do not wait for them."""
MAX_SHOWN_BYTES: Final = 64 * 1024 * 1024
MAX_GIVEN_ITEMS: Final = 5_000
MAX_ITEM_IDS: Final = 50_000


@dataclass(slots=True)
class ShownRequest:
    """A request that LiteLLM has shown, until its answer comes: the conversation as the guard reads it.

    Attributes
    ----------
    beginning
        Of the conversation, for the name of a session that has none yet; None if it was not shown.
    size
        Of the request, in bytes.
    max_repeated_words
        The limit for repeated words in the answer; 0 if nobody looks for them.
    is_new
        Whether the conversation was read and had not been sent before.
    """

    session: str
    beginning: hashlib.blake2b | None
    messages: list[Message]
    size: int = 0
    max_repeated_words: int = 0
    is_new: bool = False


class LoopState:
    """Threads, connections and memory of one event loop, and the number of its requests with a right.

    Attributes
    ----------
    shown_requests
        Requests of LiteLLM whose answers have not been shown yet, by project and id of the request.
    given_items
        Calls of answers that LiteLLM showed with ids of items, by the conversation before them.
    item_ids
        These ids by project and id of the call.
    """

    def __init__(self) -> None:
        self._background: set[asyncio.Task[None]] = set()
        self.workers = DatabaseWorkers()
        self.access = Access(self.workers, DatabaseWorkers(UNTRUSTED_THREADS, MAX_UNTRUSTED))
        self.traffic = TrafficCounter(self.workers, self.run_later)
        self.upstreams = Upstreams(self.traffic)
        self.unfinished = UnfinishedBodies()
        self.memory_budget = BodyBudget()
        self.guarding = Guarding(self.workers)
        self.memory = Memory()
        self.histories = Histories(self.memory, self.workers)
        self.shown_requests: RecentBySize[ShownRequest] = RecentBySize(MAX_SHOWN_BYTES)
        self.given_items: Recent[tuple[ToolCall, ...]] = Recent(MAX_GIVEN_ITEMS)
        self.item_ids: Recent[str] = Recent(MAX_ITEM_IDS)
        self._exchanges = 0
        self._large = ThreadPoolExecutor(2, thread_name_prefix="gateway-large")
        self._huge = ThreadPoolExecutor(1, thread_name_prefix="gateway-huge")

    @contextmanager
    def exchange(self, client: Client) -> Iterator[None]:
        """Count a request with a right as one that is served.

        Raises
        ------
        GatewayError
            503 if there are too many.
        """
        if self._exchanges >= MAX_EXCHANGES:
            detail = "Too many requests at a time. Retry in a moment."
            raise GatewayError(503, "busy", detail, [(b"retry-after", b"2")])
        client.note_granted()
        self._exchanges += 1
        try:
            yield
        finally:
            self._exchanges -= 1

    async def off_loop(self, size: int, work: Callable[[], Result]) -> Result:
        """Return the result of work on a document of so many bytes. For a large one, it runs in a thread.

        The work must be pure, or use only what may be used in several threads.
        """
        if size < LARGE_BYTES:
            return work()
        pool = self._large if size < HUGE_BYTES else self._huge
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def run_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that no request waits for."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
