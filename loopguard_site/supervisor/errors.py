"""Errors of setting up and running, with messages that an operator can act on."""

import errno
import os
import shutil
from pathlib import Path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OF_THE_DISK = FULL | {errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}
_MEGABYTE = 1024**2
_ENOUGH_MEGABYTES = 200
"""More than a first start takes: an error of a full disk is then one of the number of its files."""


class SupervisorError(RuntimeError):
    """Starting or running failed; the message says what to do and is printed without a traceback."""


class AlreadyRunning(SupervisorError):
    """Another supervisor has locked this data folder."""


def full_disk(folder: Path) -> str:
    """Return the sentences about a disk without enough space."""
    free = shutil.disk_usage(folder).free // _MEGABYTE
    if free > _ENOUGH_MEGABYTES:
        return f"The disk of {folder} can hold no more files, although {free} MB are free. Remove some and start again."
    return f"The disk of {folder} is full ({free} MB free). Free some space and start again."


def disk_error(problem: OSError, folder: Path) -> SupervisorError | None:
    """Return the error of a start that could not write; None if `problem` has another cause.

    Parameters
    ----------
    folder : Path
        Where it probably was, as not every error names it.
    """
    if problem.errno not in _OF_THE_DISK:
        return None
    place = Path(os.fsdecode(problem.filename)) if isinstance(problem.filename, str | bytes) else folder
    if problem.errno in FULL:
        existing = next(step for step in (place.absolute(), *place.absolute().parents) if step.is_dir())
        return SupervisorError(full_disk(existing))
    return SupervisorError(f"{place} cannot be written: {problem.strerror}.")
