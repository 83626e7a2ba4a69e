"""A project with a key, and processes that run on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from detection.models import Project
from detection.services.audit import SYSTEM
from detection.services.keys import create_key

from .installation import Installation


@pytest.fixture
def project(transactional_db: None) -> Project:
    return Project.objects.create(slug="support", name="Support agents")


@pytest.fixture
def token(project: Project) -> str:
    return create_key(project, "test", SYSTEM)[1]


@pytest.fixture
def install(project: Project, tmp_path: Path) -> Iterator[Callable[..., Installation]]:
    """Start what is asked for; everything ends with the test."""
    made: list[Installation] = []

    def start(redis_url: str = "", *, web: bool = True, worker: bool = True) -> Installation:
        installation = Installation(redis_url or os.environ["REDIS_URL"], tmp_path)
        made.append(installation)
        if worker:
            installation.start_worker()
        if web:
            installation.start_web()
        return installation

    yield start
    for installation in made:
        installation.stop()
