"""The development commands of `manage.py`, by name."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from development import locks, quality

ROOT = Path(__file__).resolve().parents[1]


def test(arguments: Sequence[str]) -> int:
    """Run the test suite on embedded servers; arguments are those of pytest."""
    return quality.suite(ROOT, arguments)


def check_all(arguments: Sequence[str]) -> int:
    """Run every check that CI runs; --no-tests leaves out the suite."""
    return quality.check_all(ROOT, arguments)


def lock(arguments: Sequence[str]) -> int:
    """Renew the lock files from pyproject.toml; --upgrade takes newer versions."""
    parser = argparse.ArgumentParser(prog="manage.py lock", description=lock.__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are allowed")
    parser.add_argument(
        "--upgrade-package",
        action="append",
        default=[],
        metavar="NAME",
        help="take a newer version of one package",
    )
    chosen = parser.parse_args(arguments)
    return locks.renew(ROOT, upgrade=chosen.upgrade, packages=chosen.upgrade_package)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"test": test, "check_all": check_all, "lock": lock}
