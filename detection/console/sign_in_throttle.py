"""Throttle of failed logins by account and by address, with a growing wait.

Existing logins and the account itself are not affected: only further attempts have to wait.
"""

from __future__ import annotations

import hashlib
import math
import time

from django.core.cache import cache

FREE_TRIES = 5
FREE_TRIES_PER_ADDRESS = 20
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 2.0, 900.0
FORGET_SECONDS = 3600


def _places(username: str, address: str) -> tuple[tuple[str, int], ...]:
    def key(kind: str, text: str) -> str:
        return f"sign-in:{kind}:{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:32]}"

    name = username.strip().casefold()[:300]
    return (
        (key("both", f"{name}\n{address}"), FREE_TRIES),
        (key("account", name), FREE_TRIES * 4),
        (key("address", address), FREE_TRIES_PER_ADDRESS),
    )


def wait_seconds(username: str, address: str) -> int:
    """Return how long this account at this address has to wait before the next try; 0 if it does not."""
    now, longest = time.time(), 0.0
    for key, _ in _places(username, address):
        _, not_before = cache.get(key, (0, 0.0))
        longest = max(longest, not_before - now)
    return math.ceil(max(0.0, longest))


def failed(username: str, address: str) -> None:
    """Count a failed try; each one beyond the free ones doubles the wait."""
    now = time.time()
    for key, free in _places(username, address):
        count = cache.get(key, (0, 0.0))[0] + 1
        over = count - free
        wait = 0.0 if over < 0 else min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** min(over, 20))
        cache.set(key, (count, now + wait), FORGET_SECONDS)


def succeeded(username: str, address: str) -> None:
    """Forget the failed tries of this account at this address."""
    cache.delete(_places(username, address)[0][0])
