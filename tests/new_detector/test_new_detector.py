"""A detector is one file and one line in the registry: everything else follows from its class."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db import connection

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LAST_LINE = '    "budget.Budget",\n'


@pytest.fixture(scope="module")
def project_with_burst(tmp_path_factory):
    """A copy of the project with one more file and one more line; its bytecode is compiled once."""
    copy = tmp_path_factory.mktemp("project")
    copied = {"detection", "docs", "tests"}
    for path in ROOT.iterdir():
        if path.name in copied:
            shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif not path.name.startswith("."):
            (copy / path.name).symlink_to(path)
    detectors = copy / "detection" / "engine" / "detectors"
    shutil.copy(HERE / "burst.py", detectors)
    registry = detectors / "__init__.py"
    text = registry.read_text()
    assert LAST_LINE in text
    registry.write_text(text.replace(LAST_LINE, f'{LAST_LINE}    "burst.Burst",\n'))
    return copy


def run(folder: Path, *command: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_a_registered_detector_is_found_everywhere_in_the_product(project_with_burst, db):
    address = urlsplit(os.environ["DATABASE_URL"])
    url = address._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    run(project_with_burst, str(HERE / "check_product.py"), DATABASE_URL=url)


def test_a_registered_detector_needs_no_migration(project_with_burst):
    run(project_with_burst, "manage.py", "makemigrations", "--check", "--dry-run")


@pytest.mark.long
def test_a_registered_detector_passes_the_conformance_suite(project_with_burst):
    run(
        project_with_burst, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-k", "not twin",
        "tests/engine/test_detector_conformance.py",
    )  # fmt: skip
