"""The folder of uploaded transcripts: one folder below it for each open import, and files that are still arriving.

It is the same folder for `web` and `worker`, which may run on different machines.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import structlog
from django.conf import settings

from detection.services.errors import Invalid, ServiceError
from detection.services.storage.disk_space import LEAST_FREE_BYTES

log = structlog.get_logger(__name__)
MAX_UPLOAD_BYTES: Final = 512 * 1024**2
"""Maximum size of all files of one import."""
MAX_FILES: Final = 100
ARRIVING_PREFIX: Final = "arriving-"
LEFT_OVER_SECONDS: Final = 24 * 3600
UPLOAD_PATHS: Final = (r"/p/[-\w]{1,64}/connect/imports", r"/api/v1/imports")
"""The only paths whose bodies may be larger than those of other requests."""


class TooLarge(ServiceError):
    """The files are larger than an upload may be."""

    code, status = "too_large", 413


class StorageFull(ServiceError):
    """The disk would have less free space than it must keep."""

    code, status = "storage_full", 503


def folder() -> Path:
    """Return the folder, which is created at the first use."""
    path = Path(settings.IMPORT_FOLDER)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def check_upload(size: int) -> None:
    """Check that an upload may begin.

    Parameters
    ----------
    size
        Size in bytes. Twice as much space is needed while the upload is parsed.

    Raises
    ------
    TooLarge, StorageFull
        If it is too large, or if the disk would have too little space left.
    """
    if size > MAX_UPLOAD_BYTES:
        raise too_large()
    if free_bytes() < 2 * size:
        raise storage_full()


def too_large() -> TooLarge:
    """Return the error of an upload that is too large."""
    return TooLarge(
        f"An upload can be at most {MAX_UPLOAD_BYTES // 1024**2} MB. Compress the files, or upload them in parts.",
        field="files",
    )


def too_many() -> Invalid:
    """Return the error of an upload of too many files."""
    return Invalid(
        f"An upload can have at most {MAX_FILES} files. Put them into one .zip archive.",
        field="files",
        code="too_many_files",
    )


def storage_full() -> StorageFull:
    """Return the error of a disk without space."""
    return StorageFull("The disk for uploads is nearly full. Free some space, or upload less at once.")


def free_bytes() -> float:
    """Return how many bytes may still be written to the disk of the folder."""
    usage = shutil.disk_usage(folder())
    wanted = min(settings.MIN_FREE_SHARE * usage.total, settings.MIN_FREE_BYTES)
    return usage.free - (max(wanted, LEAST_FREE_BYTES) if wanted else 0)


def new_file() -> Path:
    """Create an empty file for what arrives."""
    handle, name = tempfile.mkstemp(prefix=ARRIVING_PREFIX, dir=folder())
    open(handle, "wb").close()  # noqa: PTH123 - closes the descriptor
    return Path(name)


def keep(public_id: str, files: Sequence[Path]) -> None:
    """Move files that have arrived into the folder of an import."""
    target = folder() / public_id
    target.mkdir(mode=0o700)
    for number, file in enumerate(files):
        file.rename(target / f"{number}")


def path_of(public_id: str, number: int) -> Path:
    """Return the path of a file of an import."""
    return Path(settings.IMPORT_FOLDER) / public_id / f"{number}"


def remove(public_id: str) -> None:
    """Remove the files of an import, if there are any."""
    shutil.rmtree(Path(settings.IMPORT_FOLDER) / public_id, ignore_errors=True)


def remove_left_over(open_imports: Iterable[str]) -> int:
    """Remove files and folders that belong to none of these imports and are older than a day; returns how many."""
    known, removed = set(open_imports), 0
    root = Path(settings.IMPORT_FOLDER)
    for entry in root.iterdir() if root.is_dir() else ():
        if entry.name in known or not entry.name.startswith((ARRIVING_PREFIX, "imp_")):
            continue
        try:
            if entry.stat().st_mtime > time.time() - LEFT_OVER_SECONDS:
                continue
        except OSError:
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
        removed += 1
    if removed:
        log.info("import_files_removed", entries=removed)
    return removed
