"""Locations of LoopGuard's files, in a checkout and in an installation.

A wheel carries the folders ``templates`` and ``static`` below ``loopguard_site/assets``; a checkout has them
beside the packages. Does not belong here: Django.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED_ASSETS = _PACKAGE / "assets"
ROOT = _PACKAGE.parent
"""The folder that contains the packages: the checkout, or ``site-packages``."""


def is_checkout() -> bool:
    """Return whether LoopGuard runs from its repository, not from an installed wheel."""
    return not _INSTALLED_ASSETS.is_dir()


def has_development() -> bool:
    """Return whether the commands of `development` are there: in a checkout, not in a container image."""
    return is_checkout() and (ROOT / "development").is_dir()


def program() -> str:
    """Return the command that a person types to run LoopGuard."""
    return "python3 manage.py" if is_checkout() else "loopguard-server"


def asset_folder(name: str) -> Path:
    """Return the folder of the sources of ``templates`` or ``static``."""
    return (ROOT if is_checkout() else _INSTALLED_ASSETS) / name


def client_wheel() -> Path | None:
    """Return the wheel of the Python client: part of an installation; in a checkout, what `manage.py package` built."""
    folder = ROOT / "dist" if is_checkout() else _INSTALLED_ASSETS / "client"
    return max(folder.glob("loopguard_client-*.whl"), default=None, key=lambda file: file.stat().st_mtime)


def data_folder() -> Path:
    """Return the data folder: ``LOOPGUARD_DATA``, or the default of the checkout or of this account.

    Raises
    ------
    SystemExit
        LoopGuard is installed, the variable is not set, and the account has no home folder.
    """
    named = os.environ.get("LOOPGUARD_DATA")
    folder = Path(named) if named else _default_data_folder()
    if folder is None:
        raise SystemExit("This account has no home folder. Set LOOPGUARD_DATA to a data folder.")
    return folder


def runtime_folder() -> Path:
    """Return the folder that the processes write to: the data folder, unless `up` names one that they can reach."""
    named = os.environ.get("LOOPGUARD_RUNTIME_FOLDER")
    return Path(named) if named else data_folder()


def program_with_data() -> str:
    """Return `program`, with the data folder in its environment unless that is the default one."""
    folder = data_folder().absolute()
    return (
        program()
        if folder == _default_data_folder()
        else f"LOOPGUARD_DATA={shlex.quote(str(folder))} {program()}"
    )


def _default_data_folder() -> Path | None:
    if is_checkout():
        return ROOT / ".loopguard"
    # Relative paths are invalid there, by the XDG specification.
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not base.is_absolute():
        base = Path(os.path.expanduser("~/.local/share"))  # noqa: PTH111 (Path.expanduser raises without a home)
    return base / "loopguard" if base.is_absolute() else None


CURRENT_STATIC_FOLDER: Final = "current"
"""The file that names the folder of collected static files."""


def collected_static_folders() -> Path:
    """Return the folder in which ``prepare`` makes one of hashed, compressed static files for each of their states."""
    return ROOT / "staticfiles" if is_checkout() else runtime_folder() / "static"


def collected_static_folder(folders: Path) -> Path:
    """Return the one of these folders that ``prepare`` has made last, or one that is not there."""
    try:
        return folders / (folders / CURRENT_STATIC_FOLDER).read_text(encoding="utf-8")
    except OSError:
        return folders / "none"
