"""The row ids of sessions that this process has locked lately, by project and name.

Only a guess: a session can be removed and created again under its name. Whoever reads by such an id compares it with
the locked row.
"""

from __future__ import annotations

from typing import Final

MAX_REMEMBERED: Final = 10_000


class RecentIds:
    """Remembered row ids; all are forgotten when there are too many."""

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._ids: dict[tuple[int, str], int] = {}

    def get(self, project_id: int, external_id: str) -> int | None:
        """Return the row id that a session had, or None."""
        return self._ids.get((project_id, external_id))

    def put(self, project_id: int, external_id: str, session_id: int) -> None:
        """Remember the row id of a session."""
        if len(self._ids) >= self._max_remembered:
            self._ids.clear()
        self._ids[project_id, external_id] = session_id


recent_ids = RecentIds()
