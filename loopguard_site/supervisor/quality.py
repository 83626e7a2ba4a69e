"""Every check of the code besides the suite itself, as one command.

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
        "pytest", [sys.executable, "-m", "pytest", *arguments], root, {}
    ):
        failed.append("pytest")
    print(f"\nFailed: {', '.join(failed)}." if failed else "\nAll checks passed.", flush=True)
    return 1 if failed else 0


def _checks() -> list[tuple[str, list[str], dict[str, str]]]:
    scripts = Path(sys.executable).parent
    python = [sys.executable]
    test = {"LOOPGUARD_MODE": "test"}
    return [
        ("locks", [*python, "-m", "loopguard_site.supervisor.locks"], {}),
        ("ruff check", [*python, "-m", "ruff", "check", "."], {}),
        ("ruff format", [*python, "-m", "ruff", "format", "--check", "."], {}),
        ("mypy", [*python, "-m", "mypy"], test),
        ("import rules", [str(scripts / "lint-imports")], test),
        ("templates", [str(scripts / "djlint"), "templates", "--lint", "--quiet"], {}),
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
