"""What a person reads who gives a command a wrong argument, or whose LoopGuard does not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "LOOPGUARD_SECRET_KEY", "DJANGO_SETTINGS_MODULE")
    }
    return subprocess.run(
        [sys.executable, ROOT / "manage.py", *arguments],
        env={**kept, "LOOPGUARD_BOOTSTRAP": "0", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_command_without_a_database_says_what_to_do(tmp_path):
    done = run("contain", "list", LOOPGUARD_DATA=str(tmp_path))
    assert done.returncode == 1
    assert "The database does not respond: start LoopGuard first" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--port", "web"), "argument --port: must be a number between 1 and 65534, or 0"),
        (("up", "--port", "-1"), "argument --port: must be a number between 1 and 65534, or 0"),
        (("history", "pack", "--until", "May"), "argument --until: must be a day, as in 2026-08-31"),
    ],
)
def test_a_wrong_argument_is_named_in_words(arguments, words):
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
