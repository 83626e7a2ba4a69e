"""Counts the requests of one event loop, and adds the counts to the database every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog
from django.db import DatabaseError

from detection.gateway.protocols.answers import Answer
from detection.gateway.workers import DatabaseWorkers
from detection.services.gateway.grants import Backend
from detection.services.gateway.traffic import TrafficCounts, TrafficKey, store_traffic

log = structlog.get_logger(__name__)
FLUSH_SECONDS: Final = 5.0
STORE_SECONDS: Final = 20.0
MAX_KEYS: Final = 5_000
"""Maximum number of counts that wait for the database; beyond it, counts of new models and minutes are dropped."""


class TrafficCounter:
    """The counts of one event loop that are not stored yet.

    Up to `FLUSH_SECONDS` of counts are lost when the process is killed. If the database is away, they wait for it. If
    it stores them and the confirmation comes too late, they count twice; nothing but a chart depends on them.
    """

    def __init__(
        self, workers: DatabaseWorkers, run_later: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._workers, self._run_later = workers, run_later
        self._counts: dict[TrafficKey, TrafficCounts] = {}
        self._is_flushing = False

    def counts(self, backend: Backend, model: str = "", answered: str = "") -> TrafficCounts:
        """Return the counts of the current minute, to add to."""
        key = TrafficKey(backend.project_id, backend.public_id, int(time.time()) // 60, model, answered)
        if not self._is_flushing:
            self._is_flushing = True
            self._run_later(self._flush())
        if len(self._counts) >= MAX_KEYS and key not in self._counts:
            return TrafficCounts()
        return self._counts.setdefault(key, TrafficCounts())

    def count_request(self, backend: Backend, model: str, status: int) -> None:
        """Count a request by the status of its response. Names of models that the model server rejects are not kept."""
        counts = self.counts(backend, model if status == 200 else "")
        counts.requests += 1
        if status == 429:
            counts.rate_limited += 1
        elif status >= 500:
            counts.server_errors += 1
        elif status >= 400:
            counts.client_errors += 1

    async def _flush(self) -> None:
        await asyncio.sleep(FLUSH_SECONDS)
        taken, self._counts = self._counts, {}
        self._is_flushing = False
        try:
            await self._workers.run(lambda: store_traffic(taken), STORE_SECONDS)
        except DatabaseError as error:
            log.warning("gateway_traffic_not_stored", error=str(error)[:200])
            for key, counts in taken.items():
                if key in self._counts:
                    self._counts[key].add(counts)
                elif len(self._counts) < MAX_KEYS:
                    self._counts[key] = counts
            if self._counts and not self._is_flushing:
                self._is_flushing = True
                self._run_later(self._flush())


class RequestMeter:
    """Measures one guarded request: the tokens of its answers, and the time that LoopGuard adds.

    Attributes
    ----------
    model
        The model that the agent asks for, once it is read.
    is_answered
        Whether the model server has accepted the request; names of models that it rejects are not kept.
    """

    def __init__(self, traffic: TrafficCounter, backend: Backend) -> None:
        self._traffic, self._backend = traffic, backend
        self._started: float | None = time.perf_counter()
        self._added_seconds = 0.0
        self._counted: Answer | None = None
        self.model = ""
        self.is_answered = False

    def forwarding(self) -> None:
        """Note that the request is being forwarded; the time before counts as added."""
        if self._started is not None:
            self._added_seconds += time.perf_counter() - self._started
            self._started = None

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Measure time that the answer spends waiting for LoopGuard."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._added_seconds += time.perf_counter() - started

    def count_error(self, kind: str) -> None:
        """Count an error of the model server."""
        self._traffic.counts(self._backend, self.model).count_error(kind)

    def count_answer(self, answer: Answer) -> bool:
        """Count the tokens of an answer once; return whether they were not counted yet."""
        is_first, self._counted = self._counted is not answer, answer
        usage = answer.usage
        if not is_first or not usage.total:
            return is_first
        counts = self._traffic.counts(self._backend, self.model, answer.model[:200])
        counts.input_tokens += usage.input_tokens
        counts.cached_tokens += usage.cached_tokens
        counts.cache_write_tokens += usage.cache_write_tokens
        counts.output_tokens += usage.output_tokens
        return True

    def close(self) -> None:
        """Count the time that was added to a request that was forwarded."""
        if self._started is None:
            model = self.model if self.is_answered else ""
            self._traffic.counts(self._backend, model).count_added(self._added_seconds * 1000)
