"""The memory of one process about conversations, for repeated requests and while the database is unavailable.

All bounded.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import orjson

from detection.gateway.protocols.answers import Message
from detection.gateway.protocols.rewrites import Rewrite

Value = TypeVar("Value")
MAX_SESSIONS: Final = 2_000
MAX_REWRITES: Final = 200
"""For each session; the database has more."""
MAX_RESPONSES: Final = 20_000
MAX_BACKENDS: Final = 1_000


class Recent(Generic[Value]):
    """The most recently used values. May be used in several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """Return a value, which becomes the newest."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        """Remember a value."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)


class RecentBySize(Generic[Value]):
    """The newest values that fit into a number of bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._left = size_bytes
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        """Return a value."""
        found = self._values.get(key)
        return found[0] if found else None

    def put(self, key: Hashable, value: Value, size_bytes: int) -> None:
        """Remember a value."""
        if key in self._values:
            self._left += self._values.pop(key)[1]
        self._values[key] = value, size_bytes
        self._left -= size_bytes
        while self._left < 0:
            self._left += self._values.popitem(last=False)[1][1]


@dataclass(slots=True)
class Memory:
    """The memory of one event loop.

    Attributes
    ----------
    rewrites
        By project and session.
    sessions_of_responses
        Names of sessions by project and id of the response, for `previous_response_id`.
    backends_without_usage
        Addresses of backends that reject the request for the usage of a stream, by the id of the backend.
    """

    rewrites: Recent[dict[tuple[str, int], Rewrite]] = field(default_factory=lambda: Recent(MAX_SESSIONS))
    sessions_of_responses: Recent[str] = field(default_factory=lambda: Recent(MAX_RESPONSES))
    backends_without_usage: Recent[str] = field(default_factory=lambda: Recent(MAX_BACKENDS))

    def rewrites_of(self, key: tuple[int, str], stored: Sequence[str]) -> list[Rewrite]:
        """Return the rewrites of a session: the stored ones, and those that only this process has."""
        known = self.rewrites.get(key) or {}
        loaded = [Rewrite.load(text) for text in stored]
        return [*({one.key: one for one in loaded} | known.copy()).values()]

    def add_rewrite(self, key: tuple[int, str], rewrite: Rewrite) -> None:
        """Remember a rewrite."""
        known = self.rewrites.get(key)
        if known is None:
            known = {}
            self.rewrites.put(key, known)
        known[rewrite.key] = rewrite
        if len(known) > MAX_REWRITES:
            del known[next(iter(known))]


def conversation_key(project_id: int, session: str, messages: Sequence[Message]) -> tuple[int, str, bytes]:
    """Return the lookup key of a conversation."""
    text = orjson.dumps(messages, default=str)
    return project_id, session, hashlib.blake2b(text, digest_size=16).digest()
