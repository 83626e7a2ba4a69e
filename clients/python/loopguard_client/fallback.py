"""Counts identical calls while the server is away."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MAX_CALLS: Final = 1_000
"""Distinct calls that are counted; the oldest are forgotten."""
LIMIT: Final = 4
"""The call with this number does not run, as with the preset `standard` of the server."""


class LocalCounter:
    """Counts identical calls that brought no new result. Not safe with threads: the session locks it."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def count(self, key: str) -> int:
        """Count a call and return its number among the identical ones, from 1."""
        number, last_result = self._calls.pop(key, (0, ""))
        self._calls[key] = (number + 1, last_result)
        if len(self._calls) > MAX_CALLS:
            self._calls.popitem(last=False)
        return number + 1

    def observe_result(self, key: str, digest: str) -> None:
        """Note the result of a call. A result that differs from the one before is progress: counting starts again."""
        if key not in self._calls:
            return
        number, last_result = self._calls[key]
        self._calls[key] = (1 if last_result and last_result != digest else number, digest)

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()
