"""Versions of edited objects, so that no one overwrites changes that they have not seen.

The version of a stored document is a digest of its values: no column is needed, and an edit that restores the old
values conflicts with nobody. A form sends the version that it was filled with; programs, which read and write in one
step, send none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from detection.services.errors import Conflict


class ChangedMeanwhile(Conflict):
    """The object was changed since the form was filled.

    Attributes
    ----------
    current
        The stored values.
    """

    def __init__(self, current: Mapping[str, Any]) -> None:
        super().__init__(
            "This was changed in the meantime. Compare both versions, and save again to replace it.",
            code="changed_meanwhile",
        )
        self.current = dict(current)


def version_of(document: Mapping[str, Any]) -> str:
    """Return the version of stored values; the order of names does not matter."""
    text = orjson.dumps(dict(document), option=orjson.OPT_SORT_KEYS, default=str)
    return hashlib.sha256(text).hexdigest()[:16]


def require_version(expected: str | None, current: Mapping[str, Any]) -> None:
    """Raise `ChangedMeanwhile` where a form was filled with other values than those that are stored now.

    Parameters
    ----------
    expected
        As `version_of` gave it to the form; None checks nothing.
    current
        Read under the lock of the change.
    """
    if expected is not None and expected != version_of(current):
        raise ChangedMeanwhile(current)
