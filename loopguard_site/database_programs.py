"""PostgreSQL's own programs for backups, with the address of the database in their environment, not their arguments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.db import connections
from psycopg import pq

from loopguard_site.supervisor.binaries import postgres_bin
from loopguard_site.supervisor.errors import SupervisorError

_VERSION = re.compile(r"\d+", re.ASCII)
LOCK_SECONDS = 60
"""How long a restore waits for transactions that are still running."""


class ProgramProblem(Exception):
    """A program is missing, too old, or has failed; the message says so."""


def program(name: str, alias: str) -> Path:
    """Return a program that can read the database: that of the embedded server, else the one on the path.

    Raises
    ------
    ProgramProblem
        There is none, or it is older than the server.
    """
    try:
        found: Path | None = postgres_bin(Path(), None) / name
    except SupervisorError:
        found = None
    if found is None or not found.is_file():
        found = Path(on_path) if (on_path := shutil.which(name)) else None
    if found is None:
        raise ProgramProblem(
            f"{name} was not found. Install PostgreSQL's client programs, or set LOOPGUARD_PG_BIN to their folder."
        )
    said = subprocess.run(
        [found, "--version"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    version = _VERSION.search(said)
    connections[alias].ensure_connection()
    server = connections[alias].connection.info.server_version // 10_000
    if version is None or int(version[0]) < server:
        raise ProgramProblem(
            f"{found} is of version {said.strip() or 'unknown'}; the server is PostgreSQL {server}. "
            "Set LOOPGUARD_PG_BIN to the folder of programs that are as new."
        )
    return found


def environment(alias: str) -> dict[str, str]:
    """Return the environment of a program that is to use the database of this alias."""
    variables = {
        one.keyword.decode(): one.envvar.decode() for one in pq.Conninfo.get_defaults() if one.envvar
    }
    given: Mapping[str, Any] = connections[alias].get_connection_params()
    own = {
        variables[name]: str(value)
        for name, value in given.items()
        if name in variables and value is not None
    }
    # Deadlines of requests are not those of a backup, and notices would hide what has failed.
    own["PGOPTIONS"] = (
        f"-c statement_timeout=0 -c lock_timeout={LOCK_SECONDS}s -c client_min_messages=warning"
    )
    return {**os.environ, **own}


def failure(name: str, errors: bytes) -> ProgramProblem:
    """Return what a program said when it failed: its last lines, at most."""
    said = errors.decode(errors="replace").strip()
    return ProgramProblem(f"{name} failed: {said[-2_000:] or 'it said nothing'}")
