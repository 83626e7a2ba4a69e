#!/usr/bin/env python3
"""LoopGuard's command line.

Run it with Python 3.11 or newer: it creates `.venv` from the lock file when that is missing or
out of date, and runs the command inside it. Only the standard library may be used before that.
`LOOPGUARD_BOOTSTRAP=0` skips this and uses the Python that runs it.
"""

from __future__ import annotations

import os
import sys

# The commands of `development`, and the lock file with the packages that each needs.
DEVELOPMENT_COMMANDS = {
    **dict.fromkeys(
        (
            "test",
            "check_all",
            "coverage",
            "screenshots",
            "chaos",
            "package",
            "audit_dependencies",
            "pin_images",
            "vendor",
        ),
        "requirements-dev.lock",
    ),
    **dict.fromkeys(("lock", "sbom", "release"), "requirements-release.lock"),
}


def main() -> None:
    """Set up what is missing and run the command."""
    command = sys.argv[1] if len(sys.argv) > 1 else "help"
    if os.environ.get("LOOPGUARD_BOOTSTRAP") != "0":
        from development.own_environment import enter_environment

        enter_environment(DEVELOPMENT_COMMANDS.get(command, "requirements.lock"))
    # Child processes are already in the right environment.
    os.environ["LOOPGUARD_BOOTSTRAP"] = "0"
    if command in DEVELOPMENT_COMMANDS:
        from development.commands import COMMANDS

        sys.exit(COMMANDS[command](sys.argv[2:]))
    from loopguard_site.command_line import main as run_command

    run_command()


if __name__ == "__main__":
    main()
