"""Every check of the code as one command, and the suite on its own.

Does not belong here: what the checks demand, which pyproject.toml says.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PRODUCTION = {
    "LOOPGUARD_MODE": "production",
    "LOOPGUARD_URL": "https://loopguard.example",
    "LOOPGUARD_ALLOWED_HOSTS": "loopguard.example",
    "LOOPGUARD_SECRET_KEY": "only-to-look-at-the-settings-5up3r-l0ng-and-v4ried-and-not-used",
}

_PROCESSES_AT_MOST = 8
"""Each brings a database and reads every test: more would cost more than they save."""
_SAYS_HOW_MANY = ("-n", "--numprocesses", "--dist", "-s", "--capture", "--pdb", "--trace", "--collect-only")
"""Beginnings of pytest's options that name the processes, or that make sense with one only."""


def suite(root: Path, arguments: Sequence[str]) -> int:
    """Run the suite and return pytest's exit status.

    The whole of it is shared among as many processes as there are cores. What names its tests
    is run in one process, which starts sooner; so is all on a broker that is given, as processes
    would take one another's messages. `-n` asks for any number.

    Parameters
    ----------
    root : Path
        The checkout.
    arguments : sequence of str
        Arguments of pytest.
    """
    environment = {**os.environ, **_kept_bytecode()}
    return subprocess.run(pytest_command(root, arguments), cwd=root, env=environment, check=False).returncode


def pytest_command(root: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs what the arguments ask for, shared among processes or not."""
    names_tests = any((root / word.split("::")[0]).exists() for word in arguments)
    says_how_many = any(word.startswith(_SAYS_HOW_MANY) or word in ("--co", "no:xdist") for word in arguments)
    # In small portions: the slow tests come first, and no process may be left with most of them.
    shared = ["-n", "logical", "--maxprocesses", str(_PROCESSES_AT_MOST), "--maxschedchunk", "4"]
    is_one = names_tests or says_how_many or bool(os.environ.get("REDIS_URL"))
    return [sys.executable, "-m", "pytest", *([] if is_one else shared), *arguments]


def _kept_bytecode() -> dict[str, str]:
    """Where nothing may be written beside the sources, keep it in the environment: the suite starts Python often."""
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path(sys.prefix, "bytecode"))}


def check_all(root: Path, arguments: Sequence[str]) -> int:
    """Run all checks, then the suite; go on after a failure and return 1 if there was any.

    Parameters
    ----------
    root : Path
        The checkout.
    arguments : sequence of str
        `--no-tests` leaves the suite out; anything else is handed to pytest.
    """
    failed = [name for name, command, extra in _checks() if not _run(name, command, root, extra)]
    if "--no-tests" not in arguments and not _run(
        "pytest", pytest_command(root, arguments), root, _kept_bytecode()
    ):
        failed.append("pytest")
    print(f"\nFailed: {', '.join(failed)}." if failed else "\nAll checks passed.", flush=True)
    return 1 if failed else 0


def _checks() -> list[tuple[str, list[str], dict[str, str]]]:
    scripts = Path(sys.executable).parent
    python = [sys.executable]
    test = {"LOOPGUARD_MODE": "test"}
    return [
        ("locks", [*python, "-m", "development.locks"], {}),
        ("ruff check", [*python, "-m", "ruff", "check", "."], {}),
        ("ruff format", [*python, "-m", "ruff", "format", "--check", "."], {}),
        ("mypy", [*python, "-m", "mypy"], test),
        ("import rules", [str(scripts / "lint-imports")], test),
        ("templates", [str(scripts / "djlint"), "templates", "--lint", "--quiet"], {}),
        ("template format", [str(scripts / "djangofmt"), "--check", "templates"], {}),
        ("style and script format", [str(scripts / "oxfmt"), "--check", "static/css", "static/js"], {}),
        ("line lengths", [*python, "-m", "development.line_lengths"], {}),
        (
            "migrations",
            [*python, "-W", "ignore", "manage.py", "makemigrations", "--check", "--dry-run"],
            test,
        ),
        ("settings", [*python, "manage.py", "check", "--deploy", "--fail-level", "WARNING"], _PRODUCTION),
    ]


def _run(name: str, command: Sequence[str], root: Path, extra: dict[str, str]) -> bool:
    print(f"\n== {name}", flush=True)
    started = time.monotonic()
    environment = {**os.environ, "LOOPGUARD_BOOTSTRAP": "0", **extra}
    ok = subprocess.run(command, cwd=root, env=environment, check=False).returncode == 0
    print(f"== {name}: {'ok' if ok else 'FAILED'} in {time.monotonic() - started:.1f} s", flush=True)
    return ok
