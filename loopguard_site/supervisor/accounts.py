"""The accounts without privileges that children run as when LoopGuard is started by root.

The servers and LoopGuard's own processes have different ones: whoever may write the files of the database is not bound
by the rights in it. No account is ever created and no permission outside LoopGuard's own folders is changed.
"""

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SupervisorError

_OF_SERVERS = ("postgres", "_postgres", "daemon", "nobody")
_OF_PROCESSES = ("loopguard", "nobody", "daemon")
_TRIAL_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Account:
    """An existing system account without privileges."""

    name: str
    uid: int
    gid: int
    home: str = "/nonexistent"

    def popen_arguments(self) -> dict[str, Any]:
        """Return the arguments that make `subprocess` run a child as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def environment(self) -> dict[str, str]:
        """Return the variables that differ from those of root, whose home this account cannot enter."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def become(self) -> None:
        """Make this process run as the account, for good."""
        os.setgroups([])
        os.setgid(self.gid)  # of root, both set the saved numbers as well
        os.setuid(self.uid)

    def can_reach(self, path: Path) -> bool:
        """Tell whether this account can enter every folder of the path and read or enter its last part.

        Tries it as that account, since permission bits do not cover access lists and mounts.
        Costs about two milliseconds.
        """
        return self._tries('test -x "$1" && test -r "$1"', path)

    def can_enter(self, folder: Path) -> bool:
        """Tell whether this account can enter `folder`."""
        return self._tries('cd "$1"', folder)

    def can_write(self, folder: Path) -> bool:
        """Tell whether this account can create files in `folder`."""
        return self._tries('cd "$1" && test -w .', folder)

    def own(self, path: Path) -> None:
        """Give one of LoopGuard's own folders or files to this account."""
        os.chown(path, self.uid, self.gid)

    def own_tree(self, folder: Path) -> None:
        """Give a folder of LoopGuard's own to this account, with what its present owner has put into it.

        What others own is left alone: its present owner may have linked it from elsewhere.
        """
        owner = folder.lstat().st_uid
        if owner == self.uid:
            return
        for _, folders, files, handle in os.fwalk(folder):
            for name in (*folders, *files):
                if os.lstat(name, dir_fd=handle).st_uid == owner:
                    os.chown(name, self.uid, self.gid, dir_fd=handle, follow_symlinks=False)
        self.own(folder)

    def _tries(self, script: str, path: Path) -> bool:
        try:
            trial = subprocess.run(
                ["/bin/sh", "-c", script, "sh", os.fspath(path)],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TRIAL_TIMEOUT_SECONDS,
                check=False,
                **self.popen_arguments(),
            )
        except (OSError, subprocess.SubprocessError) as problem:
            raise SupervisorError(
                f"LoopGuard was started by root, which cannot run a program as the account {self.name} here "
                f"({problem}). Start LoopGuard as an ordinary user."
            ) from problem
        return trial.returncode == 0


def account_of_servers(cluster: Path | None = None) -> Account | None:
    """Return the account of the embedded servers, or None when this process is not root and needs none.

    Parameters
    ----------
    cluster : Path, optional
        Folder of the database files. If it exists, its owner is the account.

    Raises
    ------
    SupervisorError
        Root, and none of the accounts exists.
    """
    if os.geteuid() != 0:
        return None
    if cluster and cluster.exists() and (owner := cluster.stat().st_uid):
        try:
            entry = pwd.getpwuid(owner)
        except KeyError:
            raise SupervisorError(
                f"{cluster} belongs to the number {owner}, which is no account of this system. "
                "Give the folder and all that it contains to the account postgres."
            ) from None
        return Account(entry.pw_name, owner, entry.pw_gid, entry.pw_dir)
    return _first(_OF_SERVERS)


def account_of_processes(servers: Account | None) -> Account | None:
    """Return the account of LoopGuard's own processes, or None when this process is not root and needs none.

    Parameters
    ----------
    servers : Account or None
        The account of the embedded servers, which is another one.

    Raises
    ------
    SupervisorError
        Root, and none of the accounts exists.
    """
    return _first(_OF_PROCESSES, servers) if servers else None


def _first(names: Sequence[str], other_than: Account | None = None) -> Account:
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid not in (0, other_than.uid if other_than else 0):
            return Account(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)
    raise SupervisorError(
        "LoopGuard was started by root, and this system has none of the accounts to run as instead: "
        f"{', '.join(names)}. Start LoopGuard as an ordinary user."
    )
