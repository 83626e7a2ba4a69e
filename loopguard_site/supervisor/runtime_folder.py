"""The account of the four processes, and the folder that they write to: uploads, counts, heartbeats, compiled modules.

Does not belong here: what the servers store.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from .accounts import account_of_processes, account_of_servers
from .code_access import CodeAccess, code_access
from .errors import SupervisorError
from .homes import known_home, reachable_home

_IMPORT_FOLDER = "LOOPGUARD_IMPORT_FOLDER"
_IMPORTS, _BYTECODE = "imports", "bytecode"


def code_of_processes(data: Path, environment: Mapping[str, str]) -> CodeAccess | None:
    """Return the account of the processes and how it reads the code; None for the account of this process.

    Raises
    ------
    SupervisorError
        None of the accounts exists, or it cannot reach what it needs. Nothing has been created.
    """
    account = account_of_processes(account_of_servers(known_home(data / "postgres") / "cluster"))
    if account is None:
        return None
    if named := environment.get(_IMPORT_FOLDER):
        folder = Path(named).absolute()
        existing = next(step for step in (folder, *folder.parents) if step.exists())
        if not (account.can_write(folder) if existing == folder else account.can_enter(existing)):
            raise SupervisorError(
                f"LoopGuard was started by root, so its processes run as the account {account.name}, which cannot "
                f"{'write to' if existing == folder else 'enter'} {existing}. Give LOOPGUARD_IMPORT_FOLDER a folder of "
                "this account, or start LoopGuard as an ordinary user."
            )
    return code_access(account)


def runtime_folder(data: Path, code: CodeAccess | None) -> Path:
    """Return the folder of the processes: the data folder, or one that their account can reach.

    What they write to in it is created, and theirs: also what root's processes left there.
    """
    if code is None:
        return data
    home = reachable_home(data, code.account)
    if home != data and (data / _IMPORTS).is_dir() and not (home / _IMPORTS).exists():
        shutil.move(data / _IMPORTS, home / _IMPORTS)
    for name in (_IMPORTS, _BYTECODE):
        (home / name).mkdir(mode=0o700, exist_ok=True)
        code.account.own_tree(home / name)
    return home


def process_environment(code: CodeAccess | None, runtime: Path) -> dict[str, str]:
    """Return the variables of the processes that differ from those of the supervisor."""
    if code is None:
        return {}
    environment = code.account.environment()
    if not sys.dont_write_bytecode and sys.pycache_prefix is None:
        # They cannot write compiled modules where the code is; those of a folder that is named they can read.
        environment["PYTHONPYCACHEPREFIX"] = str(runtime / _BYTECODE)
    return environment
