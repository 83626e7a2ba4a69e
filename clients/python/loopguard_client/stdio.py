"""What the proxies of protocols on stdio have in common: a program behind its client, one JSON document on each line.

Every line passes unchanged, byte by byte, unless the proxy of the protocol says otherwise. New versions of a protocol
therefore need no new version of this.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import IO, Any, Final

from loopguard_client.guard import Guard

WAIT_SECONDS: Final = 5.0
"""How long a program may take to end once it has closed its output, or was asked to."""
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""A longer line passes unread, in pieces. The longest that is known is a file of some megabytes in base64."""


class StdioProxy(ABC):
    """A program on stdio behind its client.

    Parameters
    ----------
    guard : Guard
        The guard of the process; closed at the end.
    command : sequence of str
        The program and its arguments.
    """

    def __init__(self, guard: Guard, command: Sequence[str]) -> None:
        self.guard, self.command = guard, command
        self.lock = threading.Lock()
        # One lock for each direction: a program that writes while it does not read must not block its own output.
        self._to_program, self._to_client = threading.Lock(), threading.Lock()
        self._checks: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    @abstractmethod
    def from_client(self, line: bytes) -> None:
        """Handle a line of the client: `write_to_program` passes it on."""

    @abstractmethod
    def from_program(self, line: bytes) -> None:
        """Handle a line of the program: `write_to_client` passes it on."""

    def run(self, source: IO[bytes], target: IO[bytes]) -> int:
        """Pass lines on until the program ends, and return its exit status.

        Parameters
        ----------
        source, target
            The streams that the client writes to and reads from.
        """
        self._target = target
        with subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            if program.stdin is None or program.stdout is None:
                raise RuntimeError("The program has no pipes.")
            self._program = program.stdin
            _pass_signals(program)
            threading.Thread(target=self._read_client, args=(source,), daemon=True).start()
            _pass_lines(program.stdout, self.from_program, target, self._to_client)
            status = _ended(program)
        self.guard.close()
        return status if status >= 0 else 128 - status

    def start_check(self, check: Callable[..., None], *arguments: Any) -> None:
        """Run a check in a thread: it may take a while, and other messages must not wait for it."""
        thread = threading.Thread(target=check, args=arguments, daemon=True)
        self._checks.add(thread)
        thread.start()

    def write_to_program(self, line: bytes) -> None:
        """Write a line to the program, if it is still there."""
        with self._to_program:
            _write(self._program, line)

    def write_to_client(self, line: bytes) -> None:
        """Write a line to the client, if it is still there."""
        with self._to_client:
            _write(self._target, line)

    def _read_client(self, source: IO[bytes]) -> None:
        _pass_lines(source, self.from_client, self._program, self._to_program)
        deadline = time.monotonic() + WAIT_SECONDS
        for check in list(self._checks):  # their calls still have to reach the program
            check.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(OSError):
            self._program.close()


def run_on_stdio(proxy: StdioProxy) -> int:
    """Run a proxy on the standard streams of this process, and return the exit status of its program."""
    # Not `sys.stdin`: at its end, Python aborts while a thread reads that. To close this one would wait for the thread.
    source = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
    return proxy.run(source, sys.stdout.buffer)


def to_line(message: Any) -> bytes:
    """Return a message as a line."""
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _pass_lines(
    source: IO[bytes], handle: Callable[[bytes], None], target: IO[bytes], lock: threading.Lock
) -> None:
    while line := source.readline(MAX_LINE_BYTES):
        if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
            handle(line)
            continue
        with lock:  # no other line may come between its pieces
            _write(target, line)
            while line and not line.endswith(b"\n"):
                line = source.readline(MAX_LINE_BYTES)
                _write(target, line)


def _pass_signals(program: subprocess.Popen[bytes]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: program.send_signal(received))


def _write(target: IO[bytes], line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # the other side has gone
        target.write(line)
        target.flush()


def _ended(program: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a program that has closed its output; end it if it does not end by itself."""
    for end in (program.terminate, program.kill):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return program.wait(WAIT_SECONDS)
        end()
    return program.wait(WAIT_SECONDS)
