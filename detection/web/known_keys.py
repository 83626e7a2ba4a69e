"""Which keys were valid lately: look-ups of all others, which anybody may send, must not delay what those pay for."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MAX_KNOWN: Final = 5_000
MAX_UNTRUSTED: Final = 100
"""Waiting look-ups of other keys; beyond it, one is rejected."""


class KnownKeys:
    """The keys that were valid when they were last looked up; to be used in one event loop."""

    def __init__(self) -> None:
        self._digests: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, digest: str) -> bool:
        return digest in self._digests

    def note(self, digest: str, *, is_valid: bool) -> None:
        """Remember the outcome of a look-up."""
        self._digests.pop(digest, None)
        if is_valid:
            self._digests[digest] = None
            if len(self._digests) > MAX_KNOWN:
                self._digests.popitem(last=False)
