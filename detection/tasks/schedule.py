"""The schedule of beat. Any number of processes may run; one of them sends the tasks, and another one takes over."""

from __future__ import annotations

from typing import Any, Final

import structlog
from celery.beat import Scheduler
from django.db import DatabaseError, close_old_connections

from detection.services.maintenance import beat_process

log = structlog.get_logger(__name__)
LOOK_SECONDS: Final = 2.0
"""As often as the most frequent task is due."""


class ElectedScheduler(Scheduler):
    """Celery's scheduler, which sends tasks only while this process is the first of those that run.

    It needs no file: every entry is due again soon after a start.
    """

    _has_led = False

    def tick(self, *arguments: Any, **named: Any) -> float:
        """Send what is due, if it is up to this process; return after how many seconds to look again."""
        close_old_connections()
        try:
            leads = beat_process.leads()
        except DatabaseError as error:
            log.warning("database_unavailable", error=str(error)[:200])
            return LOOK_SECONDS
        if leads != self._has_led:
            self._has_led = leads
            log.info("beat_leads" if leads else "beat_follows")
        if not leads:
            return LOOK_SECONDS
        seconds: float = super().tick(*arguments, **named)
        return min(seconds, LOOK_SECONDS)
