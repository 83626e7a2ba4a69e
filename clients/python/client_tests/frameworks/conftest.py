"""What the tests of all adapters share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loopguard_client import Guard

from .search_tool import Tool

pytest.register_assert_rewrite(f"{__package__}.failures")


@pytest.fixture
def tool() -> Tool:
    return Tool()


@pytest.fixture
def guard(server) -> Iterator[Guard]:
    guard = Guard(server.url, server.key, agent="tester", budget_seconds=20)
    yield guard
    assert guard.status.unguarded_calls == 0
    assert guard.close(20)
