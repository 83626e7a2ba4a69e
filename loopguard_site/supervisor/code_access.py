"""Lets an account run Python, the packages and LoopGuard where they are, also below a folder that it cannot enter.

An environment below `/root` is the most common case. The processes then see a file system of their own: in the place of
each closed folder they have an empty one, with nothing in it but the folders of the code. Outside of these processes,
nothing changes. Only Linux has this; elsewhere the folders have to be open.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loopguard_site.layout import ROOT, asset_folder

from .accounts import Account
from .errors import SupervisorError

_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before any fork
_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_SLAVE = 0x2, 0x4, 0x1000, 0x4000, 0x80000
_READS_ALL = """
import importlib.util, pathlib, sys
files = [importlib.util.find_spec(name).origin for name in ("celery", "django", "granian", "detection", "uvicorn")]
files += [next(file for file in pathlib.Path(folder).rglob("*.*") if file.is_file()) for folder in sys.argv[1:]]
for file in files:
    open(file, "rb").close()
"""
"""A file of each place that the processes read."""
_TRIAL_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CodeAccess:
    """How an account reads the code.

    Attributes
    ----------
    account
        Who runs it.
    closed, code
        Folders that the account cannot enter, and those below them that it has to read; empty where it can read
        everything as it is.
    """

    account: Account
    closed: tuple[Path, ...] = ()
    code: tuple[Path, ...] = ()

    def take(self) -> None:
        """Make this process run as the account and see the code; between fork and exec only."""
        if self.closed:
            self._open()
        self.account.become()

    def _open(self) -> None:
        here = Path.cwd()
        os.umask(0o022)  # the account has to enter the folders that are created here
        _check(_LIBC.unshare(_CLONE_NEWNS))
        _mount("none", Path("/"), "", _MS_REC | _MS_SLAVE)
        handles = [os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in self.code]
        for folder in self.closed:
            _mount("none", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=1m")
        for handle, folder in zip(handles, self.code, strict=True):
            folder.mkdir(0o755, parents=True, exist_ok=True)
            _mount(f"/proc/self/fd/{handle}", folder, "", _MS_BIND | _MS_REC)
            os.close(handle)
        os.chdir(here)


def code_access(account: Account) -> CodeAccess:
    """Return how the account reads the code. Costs a tenth of a second.

    Raises
    ------
    SupervisorError
        It cannot; the message names the folder and says what to do.
    """
    access = CodeAccess(account)
    if _can_run(access):
        return access
    code = tuple(_outermost(_folders_of_code()))
    closed = {folder: _closed_above(folder, account) for folder in code}
    hidden = {folder: above for folder, above in closed.items() if above is not None and above != folder}
    access = CodeAccess(account, tuple(dict.fromkeys(hidden.values())), tuple(hidden))
    if hidden and sys.platform == "linux" and _can_run(access):
        return access
    blocked = [folder for folder, above in closed.items() if above == folder]  # no mount helps
    unread = next(iter((*blocked, *hidden.values())), f"all files of {ROOT}")
    raise SupervisorError(
        f"LoopGuard was started by root, so its processes run as the account {account.name}, which cannot read "
        f"{unread}. Install LoopGuard and its Python where every account can read them, such as /opt, or start it as "
        "an ordinary user."
    )


def _can_run(access: CodeAccess) -> bool:
    command: list[str | Path] = [
        sys.executable,
        "-c",
        _READS_ALL,
        asset_folder("templates"),
        asset_folder("static"),
    ]
    try:
        trial = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **access.account.environment()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=access.take,
            timeout=_TRIAL_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return trial.returncode == 0


def _folders_of_code() -> Iterator[Path]:
    """Yield the folders of the interpreter, of the links to it, of the packages, and of LoopGuard."""
    program = Path(sys.executable)
    while program.is_symlink():
        yield program.parent
        program = Path(os.path.normpath(program.parent / program.readlink()))
    yield program.parent
    yield from (Path(sys.base_prefix), Path(sys.prefix), ROOT)
    yield from (Path(place) for place in sys.path if place and Path(place).is_dir())


def _outermost(folders: Iterator[Path]) -> list[Path]:
    """Return the folders that lie in no other one."""
    found = {Path(os.path.abspath(folder)) for folder in folders}  # noqa: PTH100 (links stay as they are)
    return sorted(folder for folder in found if not found & set(folder.parents))


def _closed_above(folder: Path, account: Account) -> Path | None:
    """Return the first folder on the way that the account cannot enter."""
    return next((step for step in (*reversed(folder.parents), folder) if not account.can_enter(step)), None)


def _mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    _check(_LIBC.mount(source.encode(), os.fsencode(target), kind.encode(), flags, options.encode()))


def _check(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
