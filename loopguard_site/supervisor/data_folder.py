"""The data folder of one LoopGuard, and the lock on it.

Contains `lock` (locked while a supervisor runs), `running.json` (its address and environment, for
a second start and for other commands), `secret_key`, and the folders of the embedded servers.
"""

import fcntl
import json
import os
import secrets
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Self

from . import children
from .errors import AlreadyRunning, SupervisorError

_LEFTOVER_TIMEOUT_SECONDS = 5.0
"""They were to end when their supervisor died. What they leave is done again, as after a killed process; their own
servers are gone."""
_KILL_TIMEOUT_SECONDS = 10.0
"""Memory of many processes takes a moment to return, and their ports are in use meanwhile."""
_MARK = "_LOOPGUARD_SUPERVISED"
"""In the environment of every child: the data folder whose supervisor started it."""


_FOR_PROCESSES_ONLY = frozenset(
    {"LOOPGUARD_JUDGE_KEY", "LOOPGUARD_JUDGE_KEYS", "LOOPGUARD_GATEWAY_CREDENTIALS", "LOOPGUARD_MAIL_URL"}
)
"""Credentials that no command uses."""


def _is_needed(name: str) -> bool:
    """Tell whether commands adopt a variable; see `loopguard_site.command_line`."""
    ours = name.startswith("LOOPGUARD_") or name in ("DATABASE_URL", "REDIS_URL")
    return ours and name not in _FOR_PROCESSES_ONLY


class DataFolder:
    """A data folder; use it as a context manager to lock it.

    Parameters
    ----------
    path : Path
        Created when missing: mode 0700, or 0711 for root, whose servers run as another account.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._running = self.path / "running.json"
        self._handle: int | None = None

    def __enter__(self) -> Self:
        """Lock the folder.

        Raises
        ------
        AlreadyRunning
            Another supervisor has locked it; the message names its address.
        SupervisorError
            The folder cannot be created or written.
        """
        try:
            if not self.path.exists():
                self.path.mkdir(parents=True)
                self.path.chmod(0o711 if os.geteuid() == 0 else 0o700)
            self._handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise SupervisorError(
                f"The data folder {self.path} cannot be used: {problem.strerror}."
            ) from problem
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._release()
            raise AlreadyRunning(self._who_runs()) from None
        self._end_leftovers()
        return self

    def __exit__(self, *_: object) -> None:
        """Unlock the folder; the system does the same when this process dies."""
        self._running.unlink(missing_ok=True)
        self._release()

    def secret_key(self) -> str:
        """Return the key that signs sessions and digests; created at the first start."""
        file = self.path / "secret_key"
        if not file.exists():
            write_private(file, secrets.token_urlsafe(48))
        return file.read_text(encoding="utf-8").strip()

    def mark(self) -> dict[str, str]:
        """Return the environment that shows, also after a crash, that a process was started for this folder."""
        return {_MARK: str(self.path)}

    def note_running(self, url: str, environment: dict[str, str], pids: Iterable[int]) -> None:
        """Write `running.json`, for a second start and for other commands: only what these need of the environment."""
        needed = {name: value for name, value in environment.items() if _is_needed(name)}
        note = {"pid": os.getpid(), "url": url, "environment": needed, "processes": [*pids]}
        write_private(self._running, json.dumps(note, indent=1))

    def running_environment(self) -> dict[str, str] | None:
        """Return the environment of the LoopGuard that runs on this folder; None when none runs."""
        if not self.is_held():
            return None
        return dict(self._note().get("environment", {})) or None

    def is_held(self) -> bool:
        """Tell whether a supervisor has locked this folder."""
        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def _who_runs(self) -> str:
        note = self._note()
        if "url" not in note:
            return f"Another LoopGuard is starting on {self.path}."
        return f"LoopGuard is already running at {note['url']} (process {note['pid']}, data in {self.path})."

    def _end_leftovers(self) -> None:
        """End the processes of a killed supervisor, which may hold the port: helpers of a dead child, or a frozen one.

        They are known by their environment, as process ids may have been used again since. Linux only.
        """
        for number, seconds in (
            (signal.SIGTERM, _LEFTOVER_TIMEOUT_SECONDS),
            (signal.SIGKILL, _KILL_TIMEOUT_SECONDS),
        ):
            left = children.with_environment(_MARK, str(self.path))
            for pid in left:
                children.send(pid, number)
                children.send(pid, signal.SIGCONT)  # a frozen one meets the signal only then
            deadline = time.monotonic() + seconds
            for pid in left:
                children.wait_until_gone(pid, max(0.0, deadline - time.monotonic()))
        self._running.unlink(missing_ok=True)

    def _note(self) -> dict[str, Any]:
        try:
            note = json.loads(self._running.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def _release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def open_private_log(file: Path) -> BinaryIO:
    """Open a log for appending that only its owner may read: errors of a server may quote what it stores."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(handle, 0o600)  # one of an older version
    return os.fdopen(handle, "ab")


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner may read, completely or not at all."""
    partial = file.with_name(f"{file.name}.partial-{os.getpid()}")
    partial.unlink(missing_ok=True)
    with os.fdopen(
        os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as stream:
        stream.write(f"{text}\n")
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)
