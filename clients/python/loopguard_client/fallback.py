"""Counts identical calls, so that the client can decide while the server is unreachable."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

MAX_CALLS: Final = 1_000
"""Distinct calls that are counted; the oldest are forgotten."""
LIMIT: Final = 4
"""The call with this number does not run, as with the preset `standard` of the server."""
MAX_AGE_SECONDS: Final = 120.0
"""After a longer pause, an identical call counts as the first one again, as with that preset."""


class LocalCounter:
    """Counts identical calls that brought no new result. Not safe with threads: the session locks it."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, tuple[int, str, float]] = OrderedDict()

    def count(self, key: str) -> int:
        """Count a call and return its number among the identical ones, from 1."""
        now = time.monotonic()
        number, last_result, at = self._calls.pop(key, (0, "", now))
        if now - at > MAX_AGE_SECONDS:
            number, last_result = 0, ""
        self._calls[key] = (number + 1, last_result, now)
        if len(self._calls) > MAX_CALLS:
            self._calls.popitem(last=False)
        return number + 1

    def observe_verdict(self, key: str, *, may_run: bool) -> None:
        """Count a call that the server has decided.

        A call that it allows beyond `LIMIT` is not a loop under its settings, which are not known here: counting
        starts again.
        """
        if self.count(key) >= LIMIT and may_run:
            del self._calls[key]

    def observe_result(self, key: str, digest: str) -> None:
        """Note the result of a call. A result that differs from the one before is progress: counting starts again."""
        if key not in self._calls:
            return
        number, last_result, at = self._calls[key]
        self._calls[key] = (1 if last_result and last_result != digest else number, digest, at)

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()
