"""The sessions that this process wrote last, so that their next call need not read them again.

Only a guess, like `recent_ids`: another process may have written the session since. Whoever takes one locks the
session's row, and compares the versions of all rows that it was made of.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from detection.engine.memory import State
from detection.models import Session
from detection.services.events.recent_calls import RecentCalls
from detection.services.sessions.session_rows import RowVersions, SavedValues

MAX_KEPT: Final = 200
"""Number of kept sessions, of at most about 100 KB each."""


@dataclass(frozen=True, slots=True)
class RecentSession:
    """A session as it was written, with its project."""

    session: Session
    saved: SavedValues
    tracker: State
    versions: RowVersions
    calls: RecentCalls


class RecentSessions:
    """The sessions that were written last, by project and name; safe to use from several threads."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: dict[tuple[int, str], RecentSession] = {}
        self._lock = threading.Lock()

    def take(self, project_id: int, external_id: str) -> RecentSession | None:
        """Remove a session and return it: whoever changes it keeps it again once that is committed."""
        return self._kept.pop((project_id, external_id), None)

    def put(self, recent: RecentSession) -> None:
        """Keep a session, in place of the one that was kept first."""
        session = recent.session
        with self._lock:
            self._kept.pop((session.project_id, session.external_id), None)
            self._kept[session.project_id, session.external_id] = recent
            while len(self._kept) > self._max_kept:
                del self._kept[next(iter(self._kept))]


recent_sessions = RecentSessions()
