"""The deadline of the request that a thread serves; no wait for a statement, lock or connection exceeds it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_of_thread = threading.local()


@contextmanager
def deadline(at: float | None) -> Iterator[None]:
    """Give this thread a deadline for the block.

    Parameters
    ----------
    at
        Time of `time.monotonic`; None for that of the surrounding block, if there is one.
    """
    before = getattr(_of_thread, "at", None)
    _of_thread.at = before if at is None else at
    try:
        yield
    finally:
        _of_thread.at = before


def remaining_seconds() -> float | None:
    """Return the time that is left, at least 0; None without a deadline."""
    at: float | None = getattr(_of_thread, "at", None)
    return None if at is None else max(0.0, at - time.monotonic())
