"""Folders for servers of a test's own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A short path that the servers' unprivileged account can pass, which pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="lg-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
