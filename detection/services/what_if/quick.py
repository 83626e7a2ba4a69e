"""A what-if within a request: replays the newest sessions for a second and stores nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.utils import timezone

from detection.engine.identity import Keyer
from detection.models import Project, Session
from detection.selectors.pages import MAX_ID
from detection.selectors.policies import overrides_of
from detection.services.errors import Conflict
from detection.services.what_if.changes import PolicyChange
from detection.services.what_if.comparison import Findings
from detection.services.what_if.history import History
from detection.services.what_if.what_ifs import UNAVAILABLE
from detection.sql.advisory_locks import AdvisoryLock, try_lock

SECONDS: Final = 1.0
"""Time of a replay; a person who types waits no longer for a figure. A judgement."""
DAYS: Final = 7
GROUP_SESSIONS: Final = 10
"""Sessions whose records are read together; few, because the time may be over within a group."""


class _TimeOver(Exception):
    """The time of the replay is over."""


@dataclass(frozen=True, slots=True)
class QuickReplay:
    """What a replay of the newest sessions found.

    Attributes
    ----------
    sessions
        Sessions with a call in the period.
    done_sessions
        How many of them were replayed, the newest first.
    """

    findings: Findings
    sessions: int
    done_sessions: int

    @property
    def is_whole(self) -> bool:
        """Whether all sessions of the period were replayed."""
        return self.done_sessions == self.sessions


def replay(project: Project, change: PolicyChange, *, seconds: float = SECONDS) -> QuickReplay:
    """Replay the last `DAYS` days under the current policy and a changed one, newest sessions first.

    Parameters
    ----------
    change
        As `changes.check` returned it.
    seconds
        Time after which no further events are read. One replay of a project runs at a time.

    Raises
    ------
    Conflict
        ``payloads_not_stored`` if the project stores no payloads, ``busy`` while another one runs.
    """
    if not project.stores_payloads:
        raise Conflict(UNAVAILABLE, code="payloads_not_stored")
    with try_lock(AdvisoryLock.QUICK_REPLAY, project.pk) as is_locked:
        if not is_locked:
            raise Conflict("Another replay of this project runs. Try again in a second.", code="busy")
        return _replay(project, change, time.monotonic() + seconds)


def _replay(project: Project, change: PolicyChange, ends_at: float) -> QuickReplay:
    def check_time() -> None:
        if time.monotonic() > ends_at:
            raise _TimeOver

    since = timezone.now() - timedelta(days=DAYS)
    sessions = Session.objects.filter(project_id=project.pk, last_event_at__gte=since).order_by("-pk")
    if change.session:
        sessions = sessions.filter(external_id=change.session)
    count, done, findings = sessions.count(), 0, Findings()
    keyer = Keyer(bytes(project.digest_secret))
    history = History(project, overrides_of(project), change, keyer, since, check_time)
    cursor = MAX_ID
    try:
        while group := [*sessions.filter(pk__lt=cursor)[:GROUP_SESSIONS]]:
            records = history.records_of(group)
            for session in group:
                history.replay(session, records, findings)
                cursor, done = session.pk, done + 1
            check_time()
    except _TimeOver:
        pass
    return QuickReplay(findings, max(count, done), done)
