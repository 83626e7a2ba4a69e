"""Whether calls are guarded, and the circuit breaker that decides when to try the server again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

logger = logging.getLogger("loopguard_client")

FAILURES_TO_OPEN: Final = 3
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a guard.

    Attributes
    ----------
    degraded : bool
        The last request got no verdict, so that the client decides by itself.
    reason : str
        Why; empty if not degraded.
    unguarded_calls : int
        Calls without a verdict of the server since the guard was created.
    waiting_events : int
        Calls and results that the server does not have yet.
    dropped_events : int
        Calls and results that it will never have: there were too many, or it rejected them.
    """

    degraded: bool = False
    reason: str = ""
    unguarded_calls: int = 0
    waiting_events: int = 0
    dropped_events: int = 0


class Pause:
    """How long the reports of calls and results wait, because the server takes no more for now (429).

    It still gives verdicts, so that this does not concern `CircuitBreaker`.
    """

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def seconds(self) -> float:
        """How long reports are pointless; 0 if they may be sent."""
        return max(self._until - time.monotonic(), 0.0)

    def begin(self, reason: str, seconds: float) -> None:
        """Wait for as long as the server demands, within the pauses of the breaker."""
        is_new = time.monotonic() - self._until > LONGEST_PAUSE_SECONDS
        self._until = time.monotonic() + min(max(seconds, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        if is_new:
            logger.warning("LoopGuard gives verdicts, and takes reports later: %s", reason)


class CircuitBreaker:
    """Stops requests to a server that does not answer, so that calls are not delayed each time.

    After three failures in a row it opens for a second, then for twice as long each time, up to thirty seconds. When
    that time is over, one request tries the server; its success closes the breaker.

    Parameters
    ----------
    on_change : callable
        Called with the new reason, or an empty text, whenever the guard becomes degraded or recovers.
    """

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._failures = 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._open_until = 0.0
        self._is_trying = False
        self.reason = ""

    def permits(self) -> bool:
        """Return whether a request may be sent; the caller then reports `succeeded` or `failed`."""
        with self._lock:
            if self._failures < FAILURES_TO_OPEN:
                return True
            if self._is_trying or time.monotonic() < self._open_until:
                return False
            self._is_trying = True
            return True

    def seconds_until_next_try(self) -> float:
        """Return how long requests are pointless; 0 if one may be sent."""
        with self._lock:
            if self._failures < FAILURES_TO_OPEN:
                return 0.0
            return max(self._open_until - time.monotonic(), FIRST_PAUSE_SECONDS if self._is_trying else 0.0)

    def succeeded(self) -> None:
        """Close the breaker."""
        with self._lock:
            changed, self.reason = bool(self.reason), ""
            self._failures, self._is_trying, self._pause_seconds = 0, False, FIRST_PAUSE_SECONDS
        if changed:
            logger.warning("LoopGuard answers again.")
            self._on_change("")

    def abandoned(self) -> None:
        """Note that a permitted request was given up by the agent, not by the server."""
        with self._lock:
            self._is_trying = False

    def failed(self, reason: str, *, retry_after_seconds: float = 0.0, is_permanent: bool = False) -> None:
        """Count a failure.

        Parameters
        ----------
        reason
            One sentence without secrets.
        retry_after_seconds
            What the server demands, at most the longest pause.
        is_permanent
            Trying again soon is pointless, as with a wrong key: opens at once for the longest pause.
        """
        with self._lock:
            changed, self.reason = self.reason != reason, reason
            self._failures = FAILURES_TO_OPEN if is_permanent else self._failures + 1
            if self._failures >= FAILURES_TO_OPEN:
                pause = LONGEST_PAUSE_SECONDS if is_permanent else self._pause_seconds
                pause = min(max(pause, retry_after_seconds), LONGEST_PAUSE_SECONDS)
                self._open_until = time.monotonic() + pause
                self._pause_seconds = min(self._pause_seconds * 2, LONGEST_PAUSE_SECONDS)
            self._is_trying = False
        if changed:
            logger.warning("LoopGuard gives no verdicts: %s", reason)
            self._on_change(reason)
