"""The arguments of `up`.

Does not belong here: what the command does.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loopguard_site.layout import data_folder, program

from .errors import SupervisorError
from .up import Options, Supervisor

DEFAULT_PORT = 8300


def add_up_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `up`."""
    parser.add_argument("--data", type=Path, default=data_folder(), help="data folder (default %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, help="port of console and API; the "
        "next port is for live connections; 0 chooses two free ports (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--demo", action="store_true", help="play scripted agents, healthy and stuck")
    parser.add_argument(
        "--ready-file",
        type=Path,
        help="when LoopGuard answers, write its addresses and new secrets to this file, as JSON",
    )
    parser.add_argument(
        "--new-secrets", action="store_true", help="create a new password and an additional API key"
    )


def up(arguments: Sequence[str]) -> int:
    """Set up what is missing and run LoopGuard: servers, console, API and workers."""
    parser = argparse.ArgumentParser(prog=f"{program()} up", description=up.__doc__)
    add_up_arguments(parser)
    chosen = parser.parse_args(arguments)
    try:
        Supervisor(Options(**vars(chosen))).run()
    except SupervisorError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 65534):
        raise argparse.ArgumentTypeError("must be a number between 1 and 65534, or 0")
    return int(text)
