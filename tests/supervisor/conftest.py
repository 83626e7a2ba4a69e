"""Folders for servers of a test's own, and whole installations."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopguard_site.supervisor import children

from .running import Run


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A short path that the servers' unprivileged account can pass, which pytest's own folders are not."""
    folder = Path(tempfile.mkdtemp(prefix="lg-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def run(server_folder: Path) -> Iterator[Run]:
    run = Run(server_folder)
    yield run
    if (run.data / "running.json").exists():
        for pid in [json.loads((run.data / "running.json").read_text())["pid"], *run.pids()]:
            children.kill_group(pid)
