"""How far evaluation of a project lags behind its events: read periodically, to weight its requests."""

from __future__ import annotations

import threading
import time
from typing import Final

from detection.sql.pipeline import fetch

KEPT_SECONDS: Final = 2.0
MAX_PROJECTS: Final = 10_000
_LAG = (
    "SELECT extract(epoch FROM now() - pending_since)::float FROM detection_session"
    " WHERE evaluated_seq < last_seq AND project_id = %s ORDER BY pending_since LIMIT 1"
)


class ProjectLag:
    """The lag of each project, as it was at most `KEPT_SECONDS` ago; safe to use from several threads."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def seconds(self, project_id: int) -> float:
        """Return how long the project's oldest unevaluated event waits. Costs a query every `KEPT_SECONDS`."""
        now = time.monotonic()
        known = self._known.get(project_id)
        if known is not None and known[0] > now:
            return known[1]
        with self._lock:
            if len(self._known) >= MAX_PROJECTS:
                self._known.clear()
            # The others use the old value meanwhile.
            self._known[project_id] = now + KEPT_SECONDS, known[1] if known else 0.0
        rows = fetch(_LAG, [project_id])
        lag = float(rows[0][0]) if rows else 0.0
        self._known[project_id] = now + KEPT_SECONDS, lag
        return lag


project_lag = ProjectLag()
