"""The unprivileged account that servers run as when LoopGuard is started by root.

No account is ever created and no permission outside LoopGuard's own folders is changed.
"""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SupervisorError

_CANDIDATES = ("postgres", "nobody")
_TRIAL_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Account:
    """An existing system account without privileges."""

    name: str
    uid: int
    gid: int

    def popen_arguments(self) -> dict[str, Any]:
        """Return the arguments that make `subprocess` run a child as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_reach(self, path: Path) -> bool:
        """Tell whether this account can enter every folder of the path and read or enter its last part.

        Tries it as that account, since permission bits do not cover access lists and mounts.
        Costs about two milliseconds.
        """
        trial = subprocess.run(
            ["/bin/sh", "-c", 'test -x "$1" && test -r "$1"', "sh", os.fspath(path)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TRIAL_TIMEOUT_SECONDS,
            check=False,
            **self.popen_arguments(),
        )
        return trial.returncode == 0

    def can_enter(self, folder: Path) -> bool:
        """Tell whether this account can enter `folder`."""
        trial = subprocess.run(
            ["/bin/sh", "-c", 'cd "$1"', "sh", os.fspath(folder)],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TRIAL_TIMEOUT_SECONDS,
            check=False,
            **self.popen_arguments(),
        )
        return trial.returncode == 0

    def own(self, path: Path) -> None:
        """Give one of LoopGuard's own folders or files to this account."""
        os.chown(path, self.uid, self.gid)


def unprivileged_account() -> Account | None:
    """Return the account for servers, or None when this process is not root and needs none.

    Raises
    ------
    SupervisorError
        Root, and neither a `postgres` nor a `nobody` account exists.
    """
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise SupervisorError(
        "PostgreSQL refuses to run as root and this system has neither a 'postgres' nor a 'nobody' account. "
        "Start LoopGuard as an ordinary user, or set DATABASE_URL and REDIS_URL to existing servers."
    )
