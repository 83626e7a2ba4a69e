"""The command line: ``manage.py`` in a checkout, ``loopguard-server`` in an installation.

Does not belong here: what a command does.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from detection import __version__
from loopguard_site import layout
from loopguard_site.env import EnvironmentProblem, adopt_secrets
from loopguard_site.supervisor.commands import up
from loopguard_site.supervisor.data_folder import DataFolder

APPS = ("loopguard_site", "detection", *(["development"] if layout.has_development() else []))
"""Django applications whose commands are LoopGuard's own."""
CHECKOUT_ONLY = frozenset(
    {
        "audit_dependencies",
        "check_all",
        "conformance",
        "coverage",
        "evaluate",
        "lock",
        "makemigrations",
        "package",
        "pin_images",
        "release",
        "runserver",
        "sbom",
        "screenshots",
        "chaos",
        "test",
        "vendor",
        "testserver",
    }
)
"""Commands that need the repository; some are Django's."""


def main() -> None:
    """Run the command that the arguments name, and exit with its status."""
    sys.argv[0] = layout.program().rpartition(" ")[2]
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("help", [])
    if not command.startswith("-") and "-" in command:
        command = sys.argv[1] = command.replace("-", "_")  # what-if
    if command == "help" and arguments and not arguments[0].startswith("-"):
        command, arguments = arguments[0], ["--help"]
        sys.argv[1:] = [command, *arguments]
    try:
        adopt_secrets(os.environ)
    except EnvironmentProblem as error:
        sys.exit(f"LoopGuard cannot start: {error}")
    if command in ("version", "--version"):
        print(f"LoopGuard {__version__}")
    elif command in ("help", "--help", "-h") and "--commands" not in arguments:
        print(overview())
    elif command == "up":
        sys.exit(up(arguments))
    elif command == "live":
        from loopguard_site.live.server import live

        live(arguments)
    elif command in CHECKOUT_ONLY and not layout.is_checkout():
        sys.exit(f"`{command}` works only in a checkout of the repository: python3 manage.py {command}")
    else:
        run_with_django()


def run_with_django() -> None:
    """Run a command of Django or of the product, on the servers of the LoopGuard that is running."""
    adopt_environment()
    from django.core.management import execute_from_command_line
    from django.db import OperationalError, connection

    try:
        execute_from_command_line(sys.argv)
    except OperationalError as error:
        if connection.connection is not None or "--traceback" in sys.argv:
            raise
        sys.exit(
            "The database does not respond: start LoopGuard first, with `up` in another terminal, or set"
            f" LOOPGUARD_DATA to its data folder. {error}"
        )


def adopt_environment() -> None:
    """Use the environment of the LoopGuard that runs on the data folder.

    Nothing changes where the environment names a database or a key. Where nothing runs, a
    throw-away key serves commands that need no database.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loopguard_site.settings")
    if os.environ.get("DATABASE_URL") or os.environ.get("LOOPGUARD_SECRET_KEY"):
        return
    running = DataFolder(layout.data_folder()).running_environment() or {}
    for name, value in running.items():
        if name.startswith("LOOPGUARD_") or name in ("DATABASE_URL", "REDIS_URL"):
            os.environ.setdefault(name, value)
    if not running:
        os.environ.setdefault("LOOPGUARD_MODE", "embedded")
        os.environ["LOOPGUARD_SECRET_KEY"] = secrets.token_urlsafe(48)


def overview() -> str:
    """Return the list of commands; takes about a second, as it loads each of them."""
    adopt_environment()
    import django
    from django.core.management import find_commands, load_command_class

    django.setup()
    lines = {"up": first_line(up.__doc__)}
    for app in APPS:
        folder = Path(str(sys.modules[app].__path__[0]), "management")
        for name in find_commands(str(folder)):
            lines[name] = load_command_class(app, name).help
    if layout.has_development():
        from development.commands import COMMANDS

        lines |= {name: first_line(command.__doc__) for name, command in COMMANDS.items()}
    width = max(map(len, lines))
    program = layout.program()
    return "\n".join(
        [
            f"LoopGuard {__version__}",
            "",
            f"Usage: {program} COMMAND [OPTIONS]",
            "",
            *(f"  {name:<{width}}  {text}" for name, text in lines.items()),
            "",
            f"`{program} COMMAND --help` describes one command. Django's commands, such as changepassword and shell,",
            f"work as well; `{program} help --commands` lists them.",
        ]
    )


def first_line(docstring: str | None) -> str:
    """Return the first line of a docstring."""
    return (docstring or "").strip().partition("\n")[0]
