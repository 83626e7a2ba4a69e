"""Output of the supervisor: one line at a time, each with the name of the process that wrote it.

Does not belong here: the content of the lines.
"""

import contextlib
import os
import sys

NAME_WIDTH = 9
_PLAIN = "\033[0m"
_COLOURS = {
    "web": "\033[36m",
    "live": "\033[35m",
    "worker": "\033[32m",
    "beat": "\033[34m",
    "demo": "\033[33m",
    "setup": "\033[90m",
}
_OUR_COLOUR = "\033[1m"


class Console:
    """Prefixed lines on standard output, coloured on a terminal unless `NO_COLOR` is set."""

    def __init__(self) -> None:
        self._coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def line(self, name: str, text: str) -> None:
        """Print one line of a child."""
        prefix = f"{name:<{NAME_WIDTH}}|"
        if self._coloured:
            prefix = f"{_COLOURS.get(name.partition('-')[0], _OUR_COLOUR)}{prefix}{_PLAIN}"
        self._write(f"{prefix} {text}\n")

    def say(self, text: str) -> None:
        """Print a line of the supervisor."""
        self.line("loopguard", text)

    def block(self, text: str) -> None:
        """Print lines without a prefix, for reading and copying."""
        self._write(f"\n{text}\n\n")

    def _write(self, text: str) -> None:
        # The terminal may be gone; LoopGuard keeps running.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write(text)
            sys.stdout.flush()
