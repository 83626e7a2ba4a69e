"""The folder for files that another account than root works with: its own, or one that this account can reach."""

import os
import secrets
from pathlib import Path

from .accounts import Account
from .data_folder import write_private
from .errors import SupervisorError

# The data folder of root may be below /root, which no other account can enter.
_SYSTEM_STATE = Path("/var/lib/loopguard")


def reachable_home(folder: Path, account: Account | None) -> Path:
    """Return `folder` where `account` can enter it, else a folder below `/var/lib/loopguard`.

    The second is chosen once and named in the file `location` of the first, which decides from then on. No
    permission of a folder above is changed.

    Raises
    ------
    SupervisorError
        The folder named in `location` is gone, or of another account.
    """
    home = known_home(folder)
    if home != folder:
        note = folder / "location"
        if not home.is_dir():
            raise SupervisorError(
                f"{note} names {home} as the folder of the files, which does not "
                f"exist. Restore it from a backup, or remove {note} to start without data."
            )
        if account is None and not os.access(home, os.W_OK):
            raise SupervisorError(
                f"{note} names {home}, which another account owns. Start LoopGuard as root."
            )
        return home
    if account is None or account.can_enter(folder):
        return folder
    home = _SYSTEM_STATE / secrets.token_hex(8)
    home.mkdir(parents=True)
    home.parent.chmod(0o711)
    home.chmod(0o711)
    write_private(folder / "location", str(home))
    return home


def known_home(folder: Path) -> Path:
    """Return the folder that `location` names, else `folder`."""
    note = folder / "location"
    return Path(note.read_text(encoding="utf-8").strip()) if note.exists() else folder
