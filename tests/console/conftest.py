"""A world that the tests of a module share."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.scenes import World, make_world
from tests.support.shared_rows import shared_rows


@pytest.fixture(scope="module")
def shared_world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    """The world as it was made; modules that need more rows in it have a fixture of this name."""
    with shared_rows(django_db_blocker):
        yield make_world()


@pytest.fixture
def world(shared_world: World, db: None) -> World:
    """The world for one test."""
    return shared_world.copy()
