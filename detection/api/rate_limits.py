"""How many requests a key may make in a second: a bucket per key in the memory of each process, without a query.

The next moment at which a request would be on time is all that is kept of a key. A burst of `BURST_SECONDS` worth of requests
may come at once. Unknown keys are refused before this, and cannot fill the memory.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from django.conf import settings

BURST_SECONDS: Final = 2.0
MAX_KEYS: Final = 10_000
_due: dict[int, float] = {}
_lock = threading.Lock()


def per_second() -> float:
    """Return how many requests a key may make in a second, at one process; 0 for as many as it likes."""
    return float(settings.KEY_REQUESTS_PER_SECOND)


def wait_seconds(key_id: int) -> float:
    """Count a request of a key.

    Returns
    -------
    float
        0 when it may go on; otherwise it is not counted, and this is how long until one may. Costs about a microsecond.
    """
    rate = per_second()
    if not rate:
        return 0.0
    step = 1.0 / rate
    # A rate below one in two seconds still lets a single request through.
    tolerance = max(BURST_SECONDS - step, 0.0)
    now = time.monotonic()
    with _lock:
        due = max(_due.get(key_id, now), now)
        if due - now > tolerance:
            return due - now - tolerance
        if len(_due) >= MAX_KEYS and key_id not in _due:
            _forget_the_idle(now)
        _due[key_id] = due + step
    return 0.0


def _forget_the_idle(now: float) -> None:
    for key_id in [key_id for key_id, due in _due.items() if due <= now]:
        del _due[key_id]
    if len(_due) >= MAX_KEYS:
        _due.clear()
