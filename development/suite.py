"""Runs the test suite, in one process or several, with cached bytecode.

Does not belong here: servers, order and choice of the tests, which tests/conftest.py decides.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PROCESSES_PER_CORE = 1.5
"""Tests wait for a third of their time: for servers, browsers and processes that they start."""
_DAY_SECONDS = 86_400
"""A limit that long tests do not reach: judged."""
_MAX_PROCESSES = 8
"""Each process prepares a database and imports every test: more would cost more than they save."""
_CHOOSING = ("-k", "-m", "--lf", "--last-failed", "--all", "--long")
"""Beginnings of options with which a person chooses tests: all of these run, whose turn it may be."""
_OWN_PROCESSES = ("-n", "--numprocesses", "--dist", "-s", "--capture", "--pdb", "--trace", "--collect-only")
"""Beginnings of pytest's options that set the number of processes, or that work with one only."""


def run(root: Path, arguments: Sequence[str]) -> int:
    """Run the suite and return pytest's exit status.

    The whole suite is shared among more processes than there are cores, and runs a part of the slow tests, others each
    day; `--all` runs all of them. Named tests run in one
    process, which starts sooner; so does everything on a given broker, because processes would
    receive each other's messages. `-n` sets any number.

    Parameters
    ----------
    root : Path
        The checkout.
    arguments : sequence of str
        Arguments of pytest.
    """
    environment = {**os.environ, **kept_bytecode()}
    return subprocess.run(pytest_command(root, arguments), cwd=root, env=environment, check=False).returncode


def pytest_command(root: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command line of pytest for these arguments."""
    names_tests = any((root / word.split("::")[0]).exists() for word in arguments)
    sets_processes = any(
        word.startswith(_OWN_PROCESSES) or word in ("--co", "no:xdist") for word in arguments
    )
    is_one = names_tests or sets_processes or bool(os.environ.get("REDIS_URL"))
    processes = min(round((os.cpu_count() or 1) * _PROCESSES_PER_CORE), _MAX_PROCESSES)
    shared = [f"--numprocesses={processes}"]
    # The long tests have deadlines of their own. A limit of 0 is none to faulthandler, and none left to the session's.
    unlimited = (
        ["-o", "faulthandler_timeout=0", "-o", f"session_timeout={_DAY_SECONDS}"]
        if "--long" in arguments
        else []
    )
    is_chosen = names_tests or any(word.startswith(_CHOOSING) for word in arguments)
    in_turn = [] if is_chosen else ["--in-turn"]
    own = [word for word in arguments if word != "--all"]
    return [sys.executable, "-m", "pytest", *unlimited, *in_turn, *([] if is_one else shared), *own]


def kept_bytecode() -> dict[str, str]:
    """Return an environment that caches bytecode in `.venv`.

    Checks and suite start Python often; without a cache each start takes two seconds more. Installations of tests read
    this cache, also where their processes run as another account, which would start with an empty one of its own.
    """
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path(sys.prefix, "bytecode"))}
