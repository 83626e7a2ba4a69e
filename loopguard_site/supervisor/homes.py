"""Where an embedded server's own files lie: in its folder, or where its account can reach them."""

import secrets
from pathlib import Path

from .accounts import Account
from .errors import SupervisorError

# The system's own place for state; root's data folder may lie in a home that nobody else may enter.
_SYSTEM_STATE = Path("/var/lib/loopguard")


def reachable_home(folder: Path, account: Account | None) -> Path:
    """Return `folder` where `account` can enter it, else a folder below `/var/lib/loopguard`.

    The second is chosen once and named in the file `location` of the first, so that it is
    found again. No permission on the way is changed.

    Raises
    ------
    SupervisorError
        The folder chosen before is gone.
    """
    if account is None or account.can_enter(folder):
        return folder
    note = folder / "location"
    if note.exists():
        home = Path(note.read_text(encoding="utf-8").strip())
        if not home.is_dir():
            raise SupervisorError(
                f"{note} says that the server's files lie in {home}, which is gone. Restore it from a backup, "
                f"or remove {note} to begin with nothing."
            )
        return home
    home = _SYSTEM_STATE / secrets.token_hex(8)
    home.mkdir(parents=True)
    home.parent.chmod(0o711)
    home.chmod(0o711)
    note.write_text(f"{home}\n", encoding="utf-8")
    return home
