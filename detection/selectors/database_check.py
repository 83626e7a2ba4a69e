"""Whether the database answers, for probes of `web` and `live`."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import psycopg
from django.db import connections

from detection.sql.postgresql.base import DeadlineConnection

READY_TIMEOUT_SECONDS: Final = 1.0
PROBE_REUSE_SECONDS: Final = 0.25
_CAN_WRITE: Final = (
    "SELECT NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off'"
)


class DatabaseCheck:
    """Checks whether the database answers and can be written to; concurrent requests share one connection attempt.

    The attempt uses its own connection and thread, so that a stalled socket does not stall the response.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probe: _Probe | None = None

    def is_available(self) -> bool:
        """Return whether the database answers within a second, and can be written to."""
        with self._lock:
            probe = self._probe
            if probe is None or probe.is_outdated:
                probe = self._probe = _Probe()
                probe.start()
        probe.join(max(0.0, probe.started_at + READY_TIMEOUT_SECONDS - time.monotonic()))
        return probe.succeeded

    def clear(self) -> None:
        """Forget the last attempt; the next check connects again."""
        with self._lock:
            self._probe = None


class _Probe(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="readyz", daemon=True)
        self.started_at = time.monotonic()
        self.succeeded = False

    @property
    def is_outdated(self) -> bool:
        return not self.is_alive() and time.monotonic() - self.started_at > PROBE_REUSE_SECONDS

    def run(self) -> None:
        parameters: dict[str, Any] = {
            **connections["default"].get_connection_params(),
            "connect_timeout": 1,
            "autocommit": True,
        }
        try:
            with DeadlineConnection.connect(**parameters) as connection:
                is_writable = connection.execute(_CAN_WRITE).fetchone()
            self.succeeded = is_writable == (True,)
        except (psycopg.Error, OSError):
            self.succeeded = False


database_check = DatabaseCheck()
