"""The rule for request bodies that arrive slowly, for `web` and `live`: they occupy no thread and only bounded memory.

A body may keep its reader waiting for `GRACE_SECONDS`, and longer while it arrives at `MIN_BYTES_PER_SECOND`. Of one
owner, at most `MAX_UNFINISHED` bodies and `MAX_UNFINISHED_BYTES` of them may be unfinished; beyond that, the oldest one
is aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

GRACE_SECONDS: Final = 10.0
MIN_BYTES_PER_SECOND: Final = 16 * 1024
MAX_UNFINISHED: Final = 256
MAX_UNFINISHED_BYTES: Final = 64 * 1024 * 1024
Part = TypeVar("Part")


class BodyTimeout(Exception):
    """The body did not arrive in time, or was the oldest of too many."""


class UnfinishedBody:
    """One body that is being read."""

    __slots__ = ("_left", "_owner", "_timeout", "held")

    def __init__(self, owner: _Owner) -> None:
        self._owner = owner
        self._left = GRACE_SECONDS
        self._timeout: asyncio.Timeout | None = None
        self.held = 0

    async def part(self, arriving: Awaitable[Part]) -> Part:
        """Wait for a part of the body; raises `BodyTimeout`. Only this wait counts, not the work between two parts."""
        clock = asyncio.get_running_loop().time
        before = clock()
        try:
            async with asyncio.timeout(self._left) as self._timeout:
                return await arriving
        except TimeoutError:
            raise BodyTimeout from None
        finally:
            self._timeout = None
            self._left -= clock() - before

    def arrived(self, size: int, held: int = 0) -> None:
        """Note bytes that have arrived, and those of them that stay in memory until the body is complete."""
        self._left += size / MIN_BYTES_PER_SECOND
        self.held += held
        self._owner.hold(held)

    def give_up(self) -> None:
        """End the wait for the body."""
        self._left = -1.0
        if self._timeout is not None:
            self._timeout.reschedule(-1.0)


class _Owner:
    """The unfinished bodies of one owner, in the order of their start."""

    __slots__ = ("bodies", "held")

    def __init__(self) -> None:
        self.bodies: dict[UnfinishedBody, None] = {}
        self.held = 0

    def start(self) -> UnfinishedBody:
        body = UnfinishedBody(self)
        self.bodies[body] = None
        if len(self.bodies) > MAX_UNFINISHED:
            self._give_up_oldest()
        return body

    def hold(self, size: int) -> None:
        self.held += size
        if self.held > MAX_UNFINISHED_BYTES and self.bodies:
            self._give_up_oldest()

    def end(self, body: UnfinishedBody) -> None:
        self.bodies.pop(body, None)
        self.held -= body.held

    def _give_up_oldest(self) -> None:
        oldest = next(iter(self.bodies))
        del self.bodies[oldest]
        oldest.give_up()


class UnfinishedBodies:
    """The bodies that are being read in one event loop."""

    def __init__(self) -> None:
        self._owners: dict[Hashable, _Owner] = {}

    @contextmanager
    def reading(self, owner: Hashable = None) -> Iterator[UnfinishedBody]:
        """Count a body as unfinished during the block.

        Parameters
        ----------
        owner
            Whose limits apply.
        """
        known = self._owners.setdefault(owner, _Owner())
        body = known.start()
        try:
            yield body
        finally:
            known.end(body)
            if not known.bodies:
                self._owners.pop(owner, None)
