"""Bodies that arrive slowly, or not at all."""

import asyncio

import pytest

from detection.api.request_bodies import MAX_BODY_BYTES
from detection.web import unfinished_bodies
from detection.web.unfinished_bodies import BodyTimeout
from loopguard_site.front.bodies import BodyReader
from tests.support.patience import PATIENCE_SECONDS


class Arriving:
    """The protocol of a request whose body arrives in parts; None waits for ever."""

    def __init__(self, *parts):
        self.parts = parts

    def __call__(self):
        return self._whole()

    async def _whole(self):
        return b"".join([part async for part in self])

    async def __aiter__(self):
        for part in self.parts:
            if part is None:
                await asyncio.Event().wait()
            yield part


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(unfinished_bodies, "GRACE_SECONDS", 0.02)


async def read(protocol, length, reader=None):
    return await (reader or BodyReader()).read(protocol, length)


def test_whole_bodies_are_read_with_and_without_a_length():
    assert asyncio.run(read(Arriving(b"a", b"b"), "2")) == b"ab"
    assert asyncio.run(read(Arriving(b"a" * 70_000, b"b"), "70001")) == b"a" * 70_000 + b"b"
    assert asyncio.run(read(Arriving(b"a" * 700_000, b"b"), "700001")) == b"a" * 700_000 + b"b"
    assert asyncio.run(read(Arriving(b"a", b"b"), None)) == b"ab"


@pytest.mark.parametrize("length", ["100", "600000", None])
def test_a_body_that_does_not_go_on_is_given_up(length):
    with pytest.raises(BodyTimeout):
        asyncio.run(read(Arriving(b"a", None), length))


def test_a_body_above_the_limit_is_left_to_the_application():
    assert asyncio.run(read(Arriving(None), str(MAX_BODY_BYTES + 1))) == b""
    parts = [b"x" * 100_000] * 40
    assert MAX_BODY_BYTES < len(asyncio.run(read(Arriving(*parts), None))) < 2.5e6


@pytest.mark.promise("REL-14")
@pytest.mark.parametrize(("count", "size"), [(2, unfinished_bodies.MAX_UNFINISHED_BYTES), (9, 250_000)])
def test_of_too_many_unfinished_bodies_the_oldest_is_given_up(monkeypatch, count, size):
    monkeypatch.setattr(unfinished_bodies, "GRACE_SECONDS", 60)
    monkeypatch.setattr(unfinished_bodies, "MAX_UNFINISHED", count)
    monkeypatch.setattr(unfinished_bodies, "MAX_UNFINISHED_BYTES", size)

    async def three():
        reader = BodyReader()
        slow = [asyncio.create_task(read(Arriving(b"x" * 100_000, None), None, reader)) for _ in range(3)]
        done, pending = await asyncio.wait(
            slow, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        await asyncio.wait(slow)
        return [task is slow[0] for task in done], [type(task.exception()) for task in done]

    assert asyncio.run(three()) == ([True], [BodyTimeout])
