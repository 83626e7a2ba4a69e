"""What the tests of all adapters share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from loopguard_client import Guard

pytest.register_assert_rewrite(f"{__package__}.failures")


class Tool:
    """The tool of a test: how often it really ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.content = ""

    def search(self, q: str) -> str:
        """Search the web."""
        self.runs += 1
        return "0 hits" if q == "x" else hashlib.sha256(q.encode()).hexdigest() + self.content

    many = [hashlib.sha256(bytes([number])).hexdigest() for number in range(200)]
    """Of a healthy run: each search is another one and finds something else."""
    queries = many[:12]


@pytest.fixture
def tool() -> Tool:
    return Tool()


@pytest.fixture
def guard(server) -> Iterator[Guard]:
    guard = Guard(server.url, server.key, agent="tester", budget_seconds=20)
    yield guard
    assert guard.status.unguarded_calls == 0
    assert guard.close(20)
