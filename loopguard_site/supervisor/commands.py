"""The commands that run before, or without, Django, and the surroundings of all others.

Does not belong here: what a command does beyond reading its arguments.
"""

import argparse
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .data_folder import DataFolder
from .errors import SupervisorError
from .quality import check_all, suite
from .up import ROOT, Options, Supervisor

DEFAULT_PORT = 8300


def add_up_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `up`."""
    parser.add_argument("--data", type=Path, default=default_data(), help="data folder (default %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="port of the console and API; the next one is for live "
        "connections; 0 takes any two (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--demo", action="store_true", help="play scripted agents, healthy and stuck")
    parser.add_argument(
        "--ready-file", type=Path, help="write addresses, and secrets if new, here when ready"
    )
    parser.add_argument("--new-secrets", action="store_true", help="make a new password and one more API key")


def up(arguments: Sequence[str]) -> int:
    """Set up what is missing and run everything until Ctrl-C; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="manage.py up", description="Set up what is missing and run LoopGuard."
    )
    add_up_arguments(parser)
    chosen = parser.parse_args(arguments)
    try:
        Supervisor(Options(**vars(chosen))).run()
    except SupervisorError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def test(arguments: Sequence[str]) -> int:
    """Run the suite on embedded servers, or on those of `DATABASE_URL` and `REDIS_URL`."""
    return suite(ROOT, arguments)


def check(arguments: Sequence[str]) -> int:
    """Run every check that the pipeline runs."""
    return check_all(ROOT, arguments)


WITHOUT_DJANGO: dict[str, Callable[[Sequence[str]], int]] = {"up": up, "test": test, "check_all": check}


def default_data() -> Path:
    """Return the data folder when none is named."""
    return Path(os.environ.get("LOOPGUARD_DATA") or ROOT / ".loopguard")


def adopt_surroundings() -> None:
    """Give any other command the servers of the LoopGuard that runs on the data folder.

    Nothing is changed where the environment names a database or a key of its own. Where
    nothing runs, a throw-away key lets those commands work that need no database.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loopguard_site.settings")
    if os.environ.get("DATABASE_URL") or os.environ.get("LOOPGUARD_SECRET_KEY"):
        return
    running = DataFolder(default_data()).running_environment() or {}
    for name, value in running.items():
        if name.startswith("LOOPGUARD_") or name in ("DATABASE_URL", "REDIS_URL"):
            os.environ.setdefault(name, value)
    if not running:
        os.environ.setdefault("LOOPGUARD_MODE", "embedded")
        os.environ["LOOPGUARD_SECRET_KEY"] = secrets.token_urlsafe(48)


def _port(text: str) -> int:
    number = int(text)
    if not (number == 0 or 1 <= number <= 65534):
        raise argparse.ArgumentTypeError("a port from 1 to 65534, or 0")
    return number
