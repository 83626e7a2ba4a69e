"""The folder of an embedded server's files: its own, or one that its account can reach."""

import secrets
from pathlib import Path

from .accounts import Account
from .errors import SupervisorError

# The data folder of root may be below /root, which no other account can enter.
_SYSTEM_STATE = Path("/var/lib/loopguard")


def reachable_home(folder: Path, account: Account | None) -> Path:
    """Return `folder` where `account` can enter it, else a folder below `/var/lib/loopguard`.

    The second is chosen once and named in the file `location` of the first. No permission of
    a folder above is changed.

    Raises
    ------
    SupervisorError
        The folder named in `location` is gone.
    """
    if account is None or account.can_enter(folder):
        return folder
    note = folder / "location"
    if note.exists():
        home = Path(note.read_text(encoding="utf-8").strip())
        if not home.is_dir():
            raise SupervisorError(
                f"{note} names {home} as the folder of the server's files, which does not "
                f"exist. Restore it from a backup, or remove {note} to start without data."
            )
        return home
    home = _SYSTEM_STATE / secrets.token_hex(8)
    home.mkdir(parents=True)
    home.parent.chmod(0o711)
    home.chmod(0o711)
    note.write_text(f"{home}\n", encoding="utf-8")
    return home
