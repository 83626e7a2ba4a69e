"""Rate limits of API keys: a token bucket per key in the memory of each process, without queries."""

from __future__ import annotations

import threading
import time
from typing import Final

from django.conf import settings

BURST_SECONDS: Final = 2.0
MAX_KEYS: Final = 10_000


class RateLimiter:
    """Limits the requests of each key.

    Stores only the next time at which a request of a key is due. A burst of `BURST_SECONDS` worth of requests is
    allowed. Unknown keys are rejected before, so they cannot fill the memory.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._due: dict[int, float] = {}
        self._lock = threading.Lock()

    @property
    def per_second(self) -> float:
        """Requests per second and key in one process; 0 for no limit."""
        return float(settings.KEY_REQUESTS_PER_SECOND)

    def wait_seconds(self, key_id: int) -> float:
        """Count a request of a key.

        Returns
        -------
        float
            0 if the request is allowed; otherwise it is not counted, and this is the time until one is. Costs about a
            microsecond.
        """
        rate = self.per_second
        if not rate:
            return 0.0
        step = 1.0 / rate
        # A rate below one request in two seconds still allows a single request.
        tolerance = max(BURST_SECONDS - step, 0.0)
        now = time.monotonic()
        with self._lock:
            due = max(self._due.get(key_id, now), now)
            if due - now > tolerance:
                return due - now - tolerance
            if len(self._due) >= self._max_keys and key_id not in self._due:
                self._remove_idle(now)
            self._due[key_id] = due + step
        return 0.0

    def clear(self) -> None:
        """Forget all requests."""
        with self._lock:
            self._due.clear()

    def _remove_idle(self, now: float) -> None:
        for key_id in [key_id for key_id, due in self._due.items() if due <= now]:
            del self._due[key_id]
        if len(self._due) >= self._max_keys:
            self._due.clear()


rate_limiter = RateLimiter()
