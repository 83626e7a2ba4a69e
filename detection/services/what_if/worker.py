"""The work on what-ifs, in a worker: in steps of about a second, taking projects in turn.

A piece is stored in one statement with the cursor after it. When a worker dies, another one does that piece again. One
worker at a time works on the what-ifs of a project, under a lock that ends with its connection.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import structlog
from django.db import OperationalError
from django.db.models import Count, F, Max, Sum
from django.utils import timezone

from detection.engine.identity import Keyer
from detection.models import CallCount, JobState, Project, Session, WhatIf
from detection.models.jobs import OPEN_STATES
from detection.selectors.policies import load_overrides
from detection.services.what_if import changes
from detection.services.what_if.comparison import Findings
from detection.services.what_if.history import History
from detection.sql.advisory_locks import AdvisoryLock, try_lock
from detection.stream.hints import Hint
from detection.stream.publisher import publish_now

log = structlog.get_logger(__name__)
PIECE_SECONDS: Final = 1.0
GROUP_SESSIONS: Final = 20
"""Sessions whose rows and records are read together."""
MAX_WORK_SECONDS: Final = 1_800.0
"""Time limit of a what-if; it then ends with its results so far, and its coverage shows how much was replayed."""
MAX_STARTS: Final = 5
"""Workers that may die with one piece before the what-if fails."""
OUT_OF_TIME: Final = "out_of_time"


def run_waiting(
    should_stop: Callable[[], bool],
    pause: Callable[[], object] = lambda: None,
    *,
    project_id: int | None = None,
) -> int:
    """Work on the open what-ifs until none is left, one piece of each project in turn. Returns how many ended.

    Parameters
    ----------
    should_stop
        Whether this worker shuts down; asked after every piece.
    pause
        Called after every few hundred events; lets more urgent work pass.
    project_id
        Only what-ifs of this project.
    """
    rows = WhatIf.objects.filter(state__in=OPEN_STATES).order_by("pk")
    if project_id is not None:
        rows = rows.filter(project_id=project_id)
    ended, is_busy = 0, True
    while is_busy and not should_stop():
        is_busy = False
        for one_id in dict.fromkeys(rows.values_list("project_id", flat=True)):
            if should_stop():
                break
            with try_lock(AdvisoryLock.WHAT_IF, one_id) as is_locked:
                row = rows.filter(project_id=one_id).first() if is_locked else None
                if row is not None:
                    is_busy = True
                    ended += _Work(row, pause).run_piece()
    return ended


class _Work:
    """The work on one what-if, under the lock of its project."""

    def __init__(self, row: WhatIf, pause: Callable[[], object]) -> None:
        self._row, self._pause = row, pause
        self._rows = WhatIf.objects.filter(project_id=row.project_id, pk=row.pk, state__in=OPEN_STATES)

    def run_piece(self) -> bool:
        """Replay sessions for a second, and store what was found; return whether the what-if ended."""
        row, began = self._row, time.monotonic()
        project = Project.objects.get(pk=row.project_id)
        if row.starts >= MAX_STARTS:
            return self._end(
                JobState.FAILED, error_code="interrupted", error=f"It was interrupted {MAX_STARTS} times."
            )
        self._rows.update(state=JobState.RUNNING, starts=F("starts") + 1)
        if row.policy_version != project.policy_version:
            # The first piece; or a setting was changed in the meantime, and both policies begin anew.
            self._begin(project)
        try:
            is_done = self._replay(project, began)
        except OperationalError:
            # The database restarts, or ends this statement for another one: another piece tries again.
            log.warning("what_if_interrupted", id=row.public_id, exc_info=True)
            return False
        except Exception:
            log.exception("what_if_failed", id=row.public_id)
            return self._end(
                JobState.FAILED,
                error_code="internal_error",
                error="Internal error. The worker log has the details.",
            )
        return is_done

    def _begin(self, project: Project) -> None:
        row = self._row
        sessions = Session.objects.filter(project_id=row.project_id, last_event_at__gte=row.since)
        if row.change.get("session"):
            sessions = sessions.filter(external_id=row.change["session"])
        found = sessions.aggregate(sessions=Count("pk"), calls=Sum("call_count"), newest=Max("pk"))
        row.policy_version, row.cursor = project.policy_version, (found["newest"] or 0) + 1
        row.sessions, row.calls = found["sessions"], found["calls"] or 0
        row.done_sessions = row.done_calls = 0
        # Calls that arrive while it runs are not part of it: they must not look like calls of removed sessions.
        counts = CallCount.objects.filter(project_id=row.project_id, hour__gte=row.since)
        counted = counts.aggregate(calls=Sum("checks"))["calls"] or 0
        began_at = int(timezone.now().timestamp())
        row.result = Findings(replayed=Counter(counted_before=counted, began_at=began_at)).dump()
        self._rows.update(
            started_at=row.started_at or timezone.now(),
            **{
                name: getattr(row, name)
                for name in (
                    "policy_version", "cursor", "sessions", "calls", "done_sessions", "done_calls", "result",
                )
            },
        )  # fmt: skip

    def _replay(self, project: Project, began: float) -> bool:
        row = self._row
        change, stored = changes.read(row.change), load_overrides(project.pk)
        findings = Findings.load(row.result)
        keyer = Keyer(bytes(project.digest_secret))
        history = History(project, stored, change, keyer, row.since, self._pause)
        sessions = Session.objects.filter(project_id=project.pk, last_event_at__gte=row.since).order_by("-pk")
        if change.session:
            sessions = sessions.filter(external_id=change.session)
        is_done = is_late = False
        while not (is_done or is_late):
            group = [*sessions.filter(pk__lt=row.cursor)[:GROUP_SESSIONS]]
            is_done = len(group) < GROUP_SESSIONS
            records = history.records_of(group)
            for session in group:
                history.replay(session, records, findings)
                row.cursor, row.done_sessions = session.pk, row.done_sessions + 1
                row.done_calls += session.call_count
                is_late = time.monotonic() > began + PIECE_SECONDS
                if is_late:
                    is_done = is_done and session is group[-1]
                    break
        row.work_seconds += time.monotonic() - began
        row.starts, row.result = 0, findings.dump()
        values = ("cursor", "done_sessions", "done_calls", "work_seconds", "starts", "result")
        if not self._rows.update(**{name: getattr(row, name) for name in values}):
            return True  # cancelled meanwhile
        publish_now(row.project_id, Hint("what_if", row.public_id))
        if is_done or row.work_seconds > MAX_WORK_SECONDS:
            self._add_rest(findings, is_done=is_done)
            return self._end(JobState.FINISHED, result=findings.dump())
        return False

    def _add_rest(self, findings: Findings, *, is_done: bool) -> None:
        """Count what was not replayed: removed sessions, or all that remain at the time limit."""
        row = self._row
        if not is_done:
            findings.miss(
                OUT_OF_TIME,
                sessions=row.sessions - row.done_sessions,
                calls=max(0, row.calls - row.done_calls),
            )
        elif not row.change.get("session"):
            removed = findings.replayed["counted_before"] - findings.replayed["calls_since"]
            if removed > 0:
                findings.miss("removed", calls=removed)

    def _end(self, state: JobState, **values: Any) -> bool:
        """Store the end; an import that has been cancelled stays cancelled."""
        self._rows.update(state=state, finished_at=timezone.now(), **values)
        publish_now(self._row.project_id, Hint("what_if", self._row.public_id))
        log.info("what_if_ended", id=self._row.public_id, state=str(state), sessions=self._row.done_sessions)
        return True
