"""All checks of the code as one command.

Does not belong here: what the checks demand, which pyproject.toml says; how the suite runs (`suite`).
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from development import suite

_PRODUCTION = {
    "LOOPGUARD_MODE": "production",
    "LOOPGUARD_URL": "https://loopguard.example",
    "LOOPGUARD_ALLOWED_HOSTS": "loopguard.example",
    "LOOPGUARD_SECRET_KEY": "only-to-look-at-the-settings-5up3r-l0ng-and-v4ried-and-not-used",
}


def check_all(root: Path, arguments: Sequence[str]) -> int:
    """Run all checks, as many at a time as there are cores, then the suite; return 1 if anything failed.

    Parameters
    ----------
    root : Path
        The checkout.
    arguments : sequence of str
        `--no-tests` skips the suite; anything else is passed to pytest.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = [pool.submit(_run, root, *check) for check in _checks()]
        failed = [name for done in as_completed(results) if (name := _report(done.result()))]
    if "--no-tests" not in arguments and suite.run(root, arguments) != 0:
        failed.append("pytest")
    print(f"\nFailed: {', '.join(failed)}." if failed else "\nAll checks passed.", flush=True)
    return 1 if failed else 0


def _checks() -> list[tuple[str, list[str], dict[str, str]]]:
    scripts = Path(sys.executable).parent
    python = [sys.executable]
    test = {"LOOPGUARD_MODE": "test"}
    return [
        # The longest one first.
        ("mypy", [*python, "-m", "mypy"], test),
        ("locks", [*python, "-m", "development.locks"], {}),
        ("ruff check", [*python, "-m", "ruff", "check", "."], {}),
        ("ruff format", [*python, "-m", "ruff", "format", "--check", "."], {}),
        ("import rules", [str(scripts / "lint-imports")], test),
        ("templates", [str(scripts / "djlint"), "templates", "--lint", "--quiet"], {}),
        ("template format", [str(scripts / "djangofmt"), "--check", "templates"], {}),
        ("style and script format", [str(scripts / "oxfmt"), "--check", "static/css", "static/js"], {}),
        ("generated files", [*python, "docs/generate.py", "--check"], {}),
        ("line lengths", [*python, "-m", "development.line_lengths"], {}),
        ("Kubernetes manifests", [*python, "-m", "development.manifests"], {}),
        (
            "migrations",
            [*python, "-W", "ignore", "manage.py", "makemigrations", "--check", "--dry-run"],
            test,
        ),
        ("settings", [*python, "manage.py", "check", "--deploy", "--fail-level", "WARNING"], _PRODUCTION),
    ]


@dataclass(frozen=True)
class _Result:
    name: str
    ok: bool
    seconds: float
    output: str


def _run(root: Path, name: str, command: Sequence[str], extra: Mapping[str, str]) -> _Result:
    started = time.monotonic()
    environment = {**os.environ, **suite.kept_bytecode(), "LOOPGUARD_BOOTSTRAP": "0", **extra}
    done = subprocess.run(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return _Result(name, done.returncode == 0, time.monotonic() - started, done.stdout)


def _report(result: _Result) -> str:
    """Print what a check printed; return its name if it failed."""
    print(f"\n== {result.name}\n{result.output}", end="")
    print(f"== {result.name}: {'ok' if result.ok else 'FAILED'} in {result.seconds:.1f} s", flush=True)
    return "" if result.ok else result.name
