"""Start and end child processes without ever leaving one behind.

On Linux, the kernel signals the children of a process that dies. Elsewhere an `undertaker` does.
Does not belong here: the programs and the meaning of their output.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from .undertaker import Undertaker

# As on other systems than Linux; for tests.
_IS_PORTABLE = sys.platform != "linux" or os.environ.get("LOOPGUARD_UNDERTAKER") == "1"
# Loaded before any fork: between fork and exec only a plain call into it is safe.
_LIBC = None if _IS_PORTABLE else ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_KILL_TIMEOUT_SECONDS = 10.0
_undertaker = Undertaker()
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stops_held() -> Iterator[None]:
    """Hold back signals to stop until the caller has noted the child that it launches.

    A handler that raises between the start of the child and the note would leave a child of which nobody knows. Use it
    in the main thread.
    """
    held: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: held.append(number)) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number_held in held:
            signal.raise_signal(number_held)


def launch(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    become: Callable[[], None] | None = None,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a child that cannot outlive this process.

    The child gets a session of its own, so that Ctrl-C in the terminal reaches only the
    supervisor, which then ends its children in order. Call it from the main thread: on Linux
    the death signal is tied to the thread that forked.

    Parameters
    ----------
    command : sequence of str or Path
        Program and arguments; no shell is involved.
    cwd : Path
        Working directory.
    env : mapping, optional
        Whole environment of the child; that of this process by default.
    become : callable, optional
        Called in the child before the program, to run as another account; only root may give one.
    stdin, stdout : int or file
        As for `subprocess.Popen`; stderr always goes where stdout goes.
    death_signal : signal.Signals
        Signal that the child gets when this process dies.

    Returns
    -------
    subprocess.Popen
        The running child, its own process group leader.
    """
    child = subprocess.Popen(
        [os.fspath(part) for part in command],
        cwd=cwd,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.STDOUT if stdout is not None else None,
        start_new_session=True,
        preexec_fn=_before_program(become, death_signal),
    )
    if _LIBC is None:
        _undertaker.note(child.pid, death_signal)
    return child


def end(child: subprocess.Popen[bytes], first_signal: signal.Signals, *, timeout_seconds: float) -> None:
    """Signal a child to end, wait, and kill the rest of its process group.

    Parameters
    ----------
    child : subprocess.Popen
        A child started by `launch`; may have ended already.
    first_signal : signal.Signals
        The signal for a clean shutdown of this program.
    timeout_seconds : float
        Time for the shutdown before it is killed.
    """
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(first_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout_seconds)
    kill_group(child.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may be waiting for a disk
        child.wait(_KILL_TIMEOUT_SECONDS)
    _undertaker.forget(child.pid)


def kill_group(pid: int) -> None:
    """Kill all processes of a child's process group, such as workers of a server that died."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def signal_group(pid: int, number: signal.Signals | None = None) -> bool:
    """Signal what is left of a child's process group, or only look; tell whether anything is."""
    try:
        os.killpg(pid, number or 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie waiting to be reaped does not count."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process that is not our child; nothing happens when it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def with_environment(name: str, value: str) -> list[int]:
    """Return the processes that were started with this variable in their environment.

    Costs some milliseconds per hundred processes; omits those of other accounts, unless root calls it.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(name) == value:
                found.append(process.pid)
    return [pid for pid in found if pid != os.getpid()]


def wait_until_gone(pid: int, timeout_seconds: float) -> bool:
    """Wait for a process that is not our child to end; tell whether it did."""
    deadline = time.monotonic() + timeout_seconds
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _before_program(
    become: Callable[[], None] | None, death_signal: signal.Signals
) -> Callable[[], None] | None:
    if _LIBC is None:
        return become
    libc, parent = _LIBC, os.getpid()

    def prepare() -> None:
        if become is not None:
            become()
        # Becoming another account undoes this.
        libc.prctl(_PR_SET_PDEATHSIG, int(death_signal))
        if os.getppid() != parent:  # the parent died before the line above took effect
            os._exit(1)

    return prepare
