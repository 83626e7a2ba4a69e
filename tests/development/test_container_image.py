"""The files that the container image copies are enough to run it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def application(tmp_path_factory) -> Path:
    """The working directory of the image, as the Dockerfile fills it."""
    folder = tmp_path_factory.mktemp("app")
    for source, target in re.findall(r"^COPY (\S+) (\./\S*)$", DOCKERFILE, re.MULTILINE):
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, folder / target)
    return folder


def run(application: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = dict(re.findall(r"\b((?:LOOPGUARD|DJANGO)_\w+)=(\S+)", DOCKERFILE))
    assert environment["LOOPGUARD_BOOTSTRAP"] == "0"
    return subprocess.run(
        [sys.executable, *command],
        cwd=application,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_static_files_are_collected_while_the_image_is_built(application):
    assert "RUN python manage.py prepare --static" in DOCKERFILE
    done = run(application, "manage.py", "prepare", "--static")
    assert done.returncode == 0, done.stderr
    assert (application / "staticfiles" / "staticfiles.json").is_file()


def test_the_command_line_lists_the_commands_of_the_image(application):
    done = run(application, "manage.py", "help")
    assert done.returncode == 0, done.stderr
    assert "  prepare " in done.stdout
    assert "  check_all " not in done.stdout


def test_the_builder_gets_every_file_that_the_image_copies():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.MULTILINE)
    assert {f"!{source}" for source in copied} <= set(ignored)
