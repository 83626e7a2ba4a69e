"""Folders for servers of a test's own, and whole installations."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .installed import Installed, fresh_installation
from .running import Run, running_in


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A short path that the servers' unprivileged account can pass, which pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="lg-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="package")
def installed() -> Iterator[Installed]:
    with fresh_installation() as running:
        yield running


@pytest.fixture
def run() -> Iterator[Run]:
    with running_in("lg-") as run:
        yield run
