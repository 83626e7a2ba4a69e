"""The folders of collected static files: another one whenever a source has changed, so that servers keep theirs.

`layout.collected_static_folder` names the current one, which a process looks up once, when it starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.contrib.staticfiles.management.commands.collectstatic import Command as CollectStatic
from django.core.files.storage import storages
from django.core.management import CommandError, call_command

from loopguard_site.layout import CURRENT_STATIC_FOLDER

LOCK_SECONDS: Final = 120.0
_NAME_CHARACTERS: Final = 16
_NAMES: Final = re.compile(rf"[0-9a-f]{{{_NAME_CHARACTERS}}}")


def hold() -> int | None:
    """Keep the folder that this process serves from until it ends, or closes what this returns."""
    with contextlib.suppress(OSError):
        handle = os.open(settings.STATIC_ROOT, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return handle
    return None


def collect() -> None:
    """Collect the static files if a source has changed, as hashing and compressing takes seconds.

    Raises
    ------
    CommandError
        Another process has been collecting for `LOCK_SECONDS`.
    OSError
        The files cannot be written.
    """
    parent = Path(settings.STATIC_FOLDERS)
    parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(parent, os.O_RDONLY)  # locking the folder itself leaves no file behind
    try:
        _lock(handle)
        name, named = _name_of_sources(), parent / CURRENT_STATIC_FOLDER
        if not (parent / name).exists():
            _collect_into(parent / name)
        if not named.exists() or named.read_text(encoding="utf-8") != name:
            partial = named.with_name("partial-name")
            partial.write_text(name, encoding="utf-8")
            partial.replace(named)
        _remove_unused(parent, name)
    finally:
        os.close(handle)


def _name_of_sources() -> str:
    os.umask(umask := os.umask(0))  # who may read the files
    digest = hashlib.sha256(f"{sys.version} {settings.STORAGES['staticfiles']['BACKEND']} {umask}".encode())
    for finder in get_finders():
        for name, storage in finder.list([]):
            state = Path(storage.path(name)).stat()
            digest.update(f"{name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:_NAME_CHARACTERS]


def _collect_into(folder: Path) -> None:
    partial = folder.with_name("partial")
    shutil.rmtree(partial, ignore_errors=True)  # of one that was killed
    command = CollectStatic()
    command.storage = storages.create_storage(
        settings.STORAGES["staticfiles"] | {"OPTIONS": {"location": str(partial)}}
    )
    call_command(command, interactive=False, verbosity=0)
    partial.replace(folder)


def _remove_unused(parent: Path, current: str) -> None:
    """Remove what no process holds; not the latest before, with which one may be about to start."""
    others = [one for one in parent.iterdir() if _NAMES.fullmatch(one.name) and one.name != current]
    for folder in sorted(others, key=lambda one: one.stat().st_mtime)[:-1]:
        handle = os.open(folder, os.O_RDONLY)
        try:
            if _has_locked(handle):
                shutil.rmtree(folder)
        finally:
            os.close(handle)


def _lock(folder: int) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while not _has_locked(folder):
        if time.monotonic() > deadline:
            raise CommandError(
                f"Another process has been collecting the static files for {LOCK_SECONDS:g} s. End it and try again."
            )
        time.sleep(0.1)


def _has_locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
