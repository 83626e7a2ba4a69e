"""Runs LoopGuard's processes as children: logs, restarts, shutdown.

One loop in the main thread does all of it. Does not belong here: the commands.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from loopguard_site import heartbeat, succession

from . import children
from .code_access import CodeAccess
from .console import Console
from .errors import SupervisorError

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 5.0
_HANG_SECONDS, _FIRST_HEARTBEAT_SECONDS = 30.0, 120.0
_LONGEST_TICK_SECONDS = 1.0
_HEALTHY_AFTER_SECONDS = 60.0
_LONGEST_LINE_BYTES = 64 * 1024
_FORMER_SECONDS = 20.0
"""As long as the longest request of `web` may take."""


class Output:
    """What a child and its helpers print, passed on line by line until all of them have closed it."""

    def __init__(
        self, name: str, stream: IO[bytes], console: Console, selector: selectors.BaseSelector
    ) -> None:
        self._name, self._stream, self._console, self._selector = name, stream, console, selector
        self._unfinished_line = b""
        os.set_blocking(stream.fileno(), False)
        selector.register(stream, selectors.EVENT_READ, self)

    def read(self) -> bool:
        """Print what can be read now; tell whether there may be more."""
        if self._stream.closed:
            return False
        try:
            part = os.read(self._stream.fileno(), 65536)
        except BlockingIOError:
            return False
        if not part:
            self._close()
            return False
        *lines, rest = (self._unfinished_line + part).split(b"\n")
        if len(rest) > _LONGEST_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._unfinished_line = rest
        for line in lines:
            self._console.line(self._name, line.decode(errors="replace").rstrip())
        return True

    def finish(self) -> None:
        """Print the rest, and read no more."""
        while self.read():
            pass
        if not self._stream.closed:
            self._close()
        if self._unfinished_line:
            self._console.line(self._name, self._unfinished_line.decode(errors="replace").rstrip())
            self._unfinished_line = b""

    def _close(self) -> None:
        self._selector.unregister(self._stream)
        self._stream.close()


@dataclass
class Former:
    """The helpers of a child that has died, which serve until the next child does.

    Attributes
    ----------
    group : int
        Their process group.
    kill_at : float or None
        When those that still run are killed; None while nobody else serves.
    """

    group: int
    output: Output
    kill_at: float | None = None


@dataclass
class Process:
    """One child that is kept running.

    Attributes
    ----------
    name : str
        Prefix of its lines.
    command : sequence of str
        Program and arguments.
    kept : bool
        Whether it is restarted when it ends; false for the demo player.
    status : int or None
        Last exit status; negative for a signal.
    heartbeat : Path or None
        File that it touches while it works; without one, it is not watched.
    check : callable
        Called before it starts; raises `SupervisorError` if it could not work, and it is tried again later.
    problem : str
        What that said last; empty if it was started since.
    serving : Path or None
        File that it touches as soon as it serves. When it dies, its helpers serve until the next one does; without
        such a file they end with it.
    """

    name: str
    command: Sequence[str]
    kept: bool = True
    child: subprocess.Popen[bytes] | None = None
    status: int | None = None
    started: float = 0.0
    due: float | None = 0.0
    pause_seconds: float = _FIRST_PAUSE_SECONDS
    output: Output | None = field(default=None, repr=False)
    heartbeat: Path | None = None
    check: Callable[[], None] = field(default=lambda: None, repr=False)
    problem: str = ""
    last_heartbeat: int | None = None
    silent_seconds: float = 0.0
    serving: Path | None = None
    formers: list[Former] = field(default_factory=list, repr=False)

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self.child.pid if self.child is not None else None


class Fleet:
    """All children of one supervisor.

    Parameters
    ----------
    processes : sequence of Process
        In the order of starting; they end together.
    environment : mapping
        Whole environment of every child.
    folder : Path
        Working directory of every child.
    console : Console
        Receives their lines.
    changed : callable
        Called without arguments after a child was started.
    code : CodeAccess, optional
        The account that the children run as; that of this process by default.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        environment: Mapping[str, str],
        folder: Path,
        console: Console,
        changed: Callable[[], None],
        code: CodeAccess | None = None,
    ) -> None:
        self.processes = list(processes)
        self._environment = environment
        self._folder = folder
        self._console = console
        self._changed = changed
        self._code = code
        self._selector = selectors.DefaultSelector()
        self._ticked_at = time.monotonic()

    def pids(self) -> list[int]:
        """Return the process ids of all running children."""
        return [process.pid for process in self.processes if process.pid is not None]

    def add(self, process: Process) -> None:
        """Add a child, started at the next tick."""
        self.processes.append(process)

    def tick(self, timeout_seconds: float = 0.5) -> None:
        """Start children that are due, print output, notice exits and hangs; takes at most `timeout_seconds`."""
        now = time.monotonic()
        # This process may have been frozen itself.
        passed_seconds, self._ticked_at = min(now - self._ticked_at, _LONGEST_TICK_SECONDS), now
        for process in self.processes:
            if process.child is None and process.due is not None and process.due <= now:
                self._start(process)
        self._pass_on(timeout_seconds)
        for process in self.processes:
            if process.child is not None and process.child.poll() is not None:
                self._note_end(process)
            elif process.child is not None and process.heartbeat is not None:
                self._check_heartbeat(process, process.heartbeat, passed_seconds)
            if process.formers:
                self._relieve_formers(process)

    def end(self, timeout_seconds: float, hurry: Callable[[], bool]) -> None:
        """End all children: signal them, wait while they finish work in flight, kill the rest.

        Parameters
        ----------
        timeout_seconds : float
            For all of them together.
        hurry : callable
            Tells whether the operator has interrupted a second time.
        """
        running = [process for process in self.processes if process.child is not None]
        for process in running:
            if process.child is not None and process.child.poll() is None:
                process.child.send_signal(signal.SIGTERM)
        formers = [(process, former) for process in self.processes for former in process.formers]
        for _, former in formers:
            children.signal_group(former.group, signal.SIGTERM)
        deadline = time.monotonic() + timeout_seconds
        while any(p.child is not None and p.child.poll() is None for p in running) or any(
            children.signal_group(former.group) for _, former in formers
        ):
            if time.monotonic() > deadline or hurry():
                names = ", ".join(p.name for p in running if p.child is not None and p.child.poll() is None)
                self._console.say(f"Killing {names}, still running.")
                break
            self._pass_on(0.1)
        for process in running:
            if process.child is not None:
                children.end(process.child, signal.SIGKILL, timeout_seconds=0)
                self._end_output(process)
                process.child, process.due = None, None
        for process, former in formers:
            self._forget(process, former)

    def _check_heartbeat(self, process: Process, file: Path, passed_seconds: float) -> None:
        """Kill a child whose heartbeat has stopped; it is restarted like any other."""
        try:
            beat = file.stat().st_mtime_ns
        except OSError:
            return
        if beat != process.last_heartbeat:
            process.last_heartbeat, process.silent_seconds = beat, 0.0
            return
        process.silent_seconds += passed_seconds
        has_beaten = beat != 0
        limit = _HANG_SECONDS if has_beaten else _FIRST_HEARTBEAT_SECONDS
        if process.silent_seconds > limit and process.child is not None:
            self._console.say(f"{process.name} hangs: no heartbeat for {limit:g} s. Killing it.")
            children.kill_group(process.child.pid)
            process.silent_seconds = 0.0  # it takes a moment to die

    def _relieve_formers(self, process: Process) -> None:
        """Let helpers of a dead child end once the next one serves; they finish what they are at."""
        now = time.monotonic()
        is_relieved = (
            process.child is not None and process.serving is not None and _is_touched(process.serving)
        )
        for former in [*process.formers]:
            if former.kill_at is None and is_relieved:
                former.kill_at = now + _FORMER_SECONDS
                children.signal_group(former.group, signal.SIGTERM)
            if not children.signal_group(former.group) or (former.kill_at or now) < now:
                self._forget(process, former)

    def _forget(self, process: Process, former: Former) -> None:
        children.kill_group(former.group)
        former.output.finish()
        process.formers.remove(former)

    def _start(self, process: Process) -> None:
        try:
            if not process.formers:  # they listen where it will
                process.check()
        except SupervisorError as problem:
            if str(problem) != process.problem:
                process.problem = str(problem)
                self._console.say(f"{process.name} waits: {problem}")
            process.due = time.monotonic() + _LONGEST_PAUSE_SECONDS
            return
        process.problem = ""
        environment = {**self._environment}
        for file, variable in (
            (process.heartbeat, heartbeat.VARIABLE),
            (process.serving, succession.SERVING_VARIABLE),
        ):
            if file is not None:
                with contextlib.suppress(OSError):  # a full disk: it is not watched
                    self._make_untouched(file)
                    environment[variable] = str(file)
        process.last_heartbeat, process.silent_seconds = 0, 0.0
        if process.serving is not None:
            environment[succession.SUPERVISOR_VARIABLE] = str(os.getpid())
        with children.stops_held():
            process.child = children.launch(
                process.command,
                cwd=self._folder,
                env=environment,
                stdout=subprocess.PIPE,
                become=self._code.take if self._code is not None else None,
            )
            process.started, process.due = time.monotonic(), None
            if process.child.stdout is not None:
                process.output = Output(process.name, process.child.stdout, self._console, self._selector)
        self._changed()

    def _make_untouched(self, file: Path) -> None:
        file.touch()
        if self._code is not None:
            self._code.account.own(file)
        os.utime(file, ns=(0, 0))

    def _note_end(self, process: Process) -> None:
        if process.child is None:
            return
        group = process.child.pid
        if process.serving is not None and process.output is not None and children.signal_group(group):
            process.output.read()
            process.formers.append(Former(group, process.output))
            process.output = None
        else:
            children.kill_group(group)  # remaining processes of a dead server would keep its port
            self._end_output(process)
        process.status = status = process.child.returncode
        process.child = None
        reason = signal.Signals(-status).name if status < 0 else f"status {status}"
        if not process.kept:
            if status != 0:
                self._console.say(f"{process.name} ended ({reason}).")
            return
        if time.monotonic() - process.started > _HEALTHY_AFTER_SECONDS:
            process.pause_seconds = _FIRST_PAUSE_SECONDS
        self._console.say(f"{process.name} ended ({reason}). Restarting it in {process.pause_seconds:g} s.")
        process.due = time.monotonic() + process.pause_seconds
        process.pause_seconds = min(process.pause_seconds * 2, _LONGEST_PAUSE_SECONDS)

    def _pass_on(self, timeout_seconds: float) -> None:
        if not self._selector.get_map():
            time.sleep(timeout_seconds)
            return
        for key, _ in self._selector.select(timeout_seconds):
            key.data.read()

    def _end_output(self, process: Process) -> None:
        if process.output is not None:
            process.output.finish()
            process.output = None


def _is_touched(file: Path) -> bool:
    try:
        return file.stat().st_mtime_ns != 0
    except OSError:
        return True  # nothing can be known: do not keep old processes permanently
