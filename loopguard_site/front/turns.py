"""Decides which waiting request a thread answers next: the urgent kind first, then projects and keys in turn.

Every project is charged the time that threads spend on its requests, and the one that was charged least is next; its
keys take turns. A request of a thousand events thus weighs what it costs. One thread is kept for the guard, bulk
traffic has half of them at most, and a kind that waits and has none is next. While the guard is used, bulk traffic has
one thread, which rests after each large request for the time that it took.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from loopguard_site.front.guard_use import GuardUse
from loopguard_site.front.traffic import Traffic

MAX_WAITING_PER_PAYER: Final = 64
MAX_WAITING_BYTES_PER_PAYER: Final = 24 * 1024 * 1024
MAX_WAITING: Final = 1024
MAX_WAITING_BYTES: Final = 128 * 1024 * 1024
FULL_REST_BYTES: Final = 64 * 1024
"""While the guard is used, bulk traffic rests as long as its last request took, and less if that was below this."""
MAX_REST_SECONDS: Final = 1.0
Payer = tuple[str, str]
"""The project, or client address, and the key that a request is charged to."""


class WaitingRequest:
    """A request that waits for a thread, or has one.

    Attributes
    ----------
    size
        Bytes of its body.
    started_at
        When a thread took it, by the clock of `Turns`; 0 before that.
    charged
        Seconds that were charged for it in advance.
    weight
        Factor of the time that it takes, above 1 if it causes work later.
    """

    __slots__ = ("charged", "payer", "size", "started_at", "traffic", "weight")

    def __init__(self, traffic: Traffic, payer: Payer, size: int) -> None:
        self.traffic, self.payer, self.size = traffic, payer, size
        self.started_at = self.charged = 0.0
        self.weight = 1.0

    def answer(self) -> None:
        """Answer the request; called in a thread. Raises nothing."""
        raise NotImplementedError


class _Queues:
    """The waiting requests of one kind of traffic, by project and key."""

    def __init__(self, most_running: int) -> None:
        self.most_running = most_running
        self.running = 0
        self.by_project: dict[str, dict[str, deque[WaitingRequest]]] = {}
        self._charged: dict[str, float] = {}
        self._expected: dict[str, float] = {}
        self._base = 0.0
        """The charge of the project that was served last; whoever did not wait before starts there."""

    def put(self, request: WaitingRequest) -> None:
        project, key = request.payer
        keys = self.by_project.get(project)
        if keys is None:
            self.by_project[project] = {key: deque((request,))}
            self._charged[project] = max(self._charged.get(project, 0.0), self._base)
        elif key in keys:
            keys[key].append(request)
        else:
            keys[key] = deque((request,))

    def next(self) -> WaitingRequest:
        """Return the next request: of the project that was charged least, its keys in turn."""
        project = min(self.by_project, key=self._charged.__getitem__)
        self._base = max(self._base, self._charged[project])
        key, waiting = next(iter(self.by_project[project].items()))
        request = waiting.popleft()
        self._tidy(project, key)
        # Charged before it is known what the request takes: other threads look for their next one meanwhile.
        request.charged = self._expected.get(project, 0.0)
        self._charged[project] += request.charged
        return request

    def charge(self, request: WaitingRequest, seconds: float) -> None:
        """Charge the actual cost of a request."""
        project = request.payer[0]
        self._charged[project] = self._charged.get(project, self._base) + seconds - request.charged
        self._expected[project] = seconds
        if not self.by_project and not self.running:
            # Nobody waits, so everybody has got what they wanted.
            self._charged.clear()
            self._expected.clear()
            self._base = 0.0

    def remove(self, request: WaitingRequest) -> None:
        project, key = request.payer
        self.by_project[project][key].remove(request)
        self._tidy(project, key)

    def _tidy(self, project: str, key: str) -> None:
        """Move the key behind the others of its project, or remove it if nothing waits."""
        keys = self.by_project[project]
        waiting = keys.pop(key)
        if waiting:
            keys[key] = waiting
        elif not keys:
            del self.by_project[project]


class Turns:
    """The waiting requests of all kinds; safe to use from any thread.

    Parameters
    ----------
    threads
        How many threads call `take`.
    clock
        Gives the time in seconds.
    guard_use
        Whether the guard is used; None to know it of this process only.
    """

    def __init__(
        self, threads: int, clock: Callable[[], float] = time.monotonic, guard_use: GuardUse | None = None
    ) -> None:
        self._guard_use = guard_use or GuardUse(clock=clock)
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._queues = {
            Traffic.GUARD: _Queues(threads),
            Traffic.INTERACTIVE: _Queues(threads),
            Traffic.BULK: _Queues(max(1, threads // 2)),
        }
        self._most_others = max(1, threads - 1)
        self._resting_until = 0.0
        self._rest_left: float | None = None
        self._waiting = self._waiting_bytes = 0
        self._of_payer: dict[Payer, tuple[int, int]] = {}

    def put(self, request: WaitingRequest) -> bool:
        """Add a request; False if too many wait, of its payer or in all."""
        with self._changed:
            count, size = self._of_payer.get(request.payer, (0, 0))
            if (
                count >= MAX_WAITING_PER_PAYER
                or size + request.size > MAX_WAITING_BYTES_PER_PAYER
                or self._waiting >= MAX_WAITING
                or self._waiting_bytes + request.size > MAX_WAITING_BYTES
            ):
                return False
            self._of_payer[request.payer] = count + 1, size + request.size
            self._waiting += 1
            self._waiting_bytes += request.size
            self._queues[request.traffic].put(request)
            if request.traffic == Traffic.GUARD:
                self._guard_use.note()
            self._changed.notify()
        return True

    def take(self) -> WaitingRequest:
        """Wait for a request that may have a thread, and return it; `done` follows."""
        with self._changed:
            while (request := self._next()) is None:
                self._changed.wait(self._rest_left)
            request.started_at = self._clock()
            self._forget(request)
            if self._rest_left is not None:
                self._changed.notify()  # this thread may have been the one that waited for the end of the rest
            return request

    def done(self, request: WaitingRequest) -> None:
        """Note that a thread is free again, and charge the request's payer."""
        with self._changed:
            queues = self._queues[request.traffic]
            queues.running -= 1
            now = self._clock()
            seconds = now - request.started_at
            queues.charge(request, seconds * request.weight)
            if request.traffic == Traffic.BULK:
                rest = seconds * min(1.0, request.size / FULL_REST_BYTES)
                self._resting_until = now + min(rest, MAX_REST_SECONDS)

    def leave(self, request: WaitingRequest) -> bool:
        """Remove a request that is answered otherwise; False if a thread has taken it."""
        with self._changed:
            if request.started_at:
                return False
            self._queues[request.traffic].remove(request)
            self._forget(request)
            return True

    def _next(self) -> WaitingRequest | None:
        self._rest_left = self._rest()
        waiting = [(traffic, queues) for traffic, queues in self._queues.items() if queues.by_project]
        if len(waiting) > 1:
            waiting.sort(key=lambda one: one[1].running > 0)
        for traffic, queues in waiting:
            is_kept = traffic != Traffic.GUARD and self._others_running() >= self._most_others
            if queues.running < self._most_running(traffic, queues) and not is_kept:
                queues.running += 1
                return queues.next()
        return None

    def _most_running(self, traffic: Traffic, queues: _Queues) -> int:
        if traffic != Traffic.BULK or not self._guard_use.seconds_left():
            return queues.most_running
        return 0 if self._rest_left else 1

    def _rest(self) -> float | None:
        """Return how long waiting bulk requests are still held back: no event ends that. None for not at all."""
        if not self._queues[Traffic.BULK].by_project:
            return None
        seconds = min(self._resting_until - self._clock(), self._guard_use.seconds_left())
        return seconds if seconds > 0 else None

    def _others_running(self) -> int:
        return self._queues[Traffic.INTERACTIVE].running + self._queues[Traffic.BULK].running

    def _forget(self, request: WaitingRequest) -> None:
        self._waiting -= 1
        self._waiting_bytes -= request.size
        count, size = self._of_payer[request.payer]
        if count == 1:
            del self._of_payer[request.payer]
        else:
            self._of_payer[request.payer] = count - 1, size - request.size
