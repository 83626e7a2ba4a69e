"""A cache of values that many open pages request at the same time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class RecentCache(Generic[Value]):
    """The most recently stored values, by key; thread-safe.

    Parameters
    ----------
    size : int
        Values that are kept; the oldest is dropped.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[tuple[object, ...], Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[object, ...]) -> Value | None:
        """Return the value of a key, None if there is none."""
        return self._values.get(key)

    def put(self, key: tuple[object, ...], value: Value) -> None:
        """Store a value."""
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._size:
                self._values.popitem(last=False)
