"""Carries out actions on all incidents of a loop: one incident per transaction, resumable and reversible.

A request carries out as much as fits into its time, usually all. A worker continues with the rest, and after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from detection.models import Incident, LoopActivity
from detection.models.incidents import IncidentLabel, IncidentStatus, LabelReason
from detection.services.alerting import outbox
from detection.services.errors import ServiceError
from detection.services.incidents import triage

IN_REQUEST_SECONDS: Final = 2.0
IN_SWEEP_SECONDS: Final = 3.0
BATCH_INCIDENTS: Final = 50
CLAIM: Final = timedelta(seconds=30)
MAX_WAITING: Final = 20
_Change = Callable[[LoopActivity, str, str], bool]


def _label(value: str, reason: str = "") -> _Change:
    return partial(triage.label, value=value, reason=reason)


def _fine(reason: str) -> tuple[Q, _Change]:
    label = IncidentLabel.FALSE_ALARM
    return ~Q(label=label, label_reason=reason), _label(label, reason)


SWEEPING: Mapping[str, tuple[Q, _Change]] = {
    "done": (Q(status=IncidentStatus.OPEN), triage.close),
    "fine": (~Q(label=IncidentLabel.FALSE_ALARM), _label(IncidentLabel.FALSE_ALARM)),
    **{f"fine:{reason}": _fine(reason) for reason in LabelReason.values if reason},
    "fine_run": (~Q(label=IncidentLabel.FALSE_ALARM), _label(IncidentLabel.FALSE_ALARM)),
    **{f"fine_run:{reason}": _fine(reason) for reason in LabelReason.values if reason},
    "confirmed": (~Q(label=IncidentLabel.TRUE_LOOP), _label(IncidentLabel.TRUE_LOOP)),
    "confirmed_run": (~Q(label=IncidentLabel.TRUE_LOOP), _label(IncidentLabel.TRUE_LOOP)),
    "label_removed": (~Q(label=IncidentLabel.NONE), _label(IncidentLabel.NONE)),
}
"""Actions on all incidents: which incidents they concern, and the change of one."""


def claim() -> Any:
    """Return the end of the claim of a process that starts a change now."""
    return timezone.now() + CLAIM


def note_of(change: LoopActivity) -> str:
    """Return the note of an incident that is changed with its loop."""
    return f"with {change.loop.public_id}{': ' if change.note else ''}{change.note}"


def carry_out(change: LoopActivity, seconds: float = IN_REQUEST_SECONDS) -> None:
    """Carry out a change that this process has claimed, for at most a few seconds; updates the row.

    Costs a few milliseconds per incident.
    """
    until = time.monotonic() + seconds
    while True:
        batch = list(_next_incidents(change).values_list("pk", "public_id")[:BATCH_INCIDENTS])
        for pk, public_id in batch:
            change.changed += _apply(change, public_id)
            change.done_up_to = pk
            if time.monotonic() > until:
                break
        is_done = not batch or (len(batch) < BATCH_INCIDENTS and change.done_up_to == batch[-1][0])
        is_over = is_done or time.monotonic() > until
        change.claimed_until = None if is_over else claim()
        change.finished_at = timezone.now() if is_done else None
        with transaction.atomic():
            saved = (
                _itself(change)
                .filter(finished_at=None)
                .update(
                    done_up_to=change.done_up_to,
                    changed=change.changed,
                    claimed_until=change.claimed_until,
                    finished_at=change.finished_at,
                )
            )
            if saved and is_done:
                outbox.record_verb(change)
        if is_over or not saved:  # an undo ends the change that it reverts
            return


def _itself(change: LoopActivity) -> QuerySet[LoopActivity]:
    return LoopActivity.objects.filter(project_id=change.project_id, pk=change.pk)


def _next_incidents(change: LoopActivity) -> QuerySet[Incident]:
    rows = Incident.objects.filter(
        project_id=change.project_id,
        loop=change.loop_id,
        pk__gt=change.done_up_to,
        pk__lte=change.last_incident,
    ).order_by("pk")
    if change.reverts is None:
        return rows.filter(SWEEPING[change.action][0])
    return rows.filter(pk__in=change.reverts.incident_activity.values("incident"))


def _apply(change: LoopActivity, public_id: str) -> bool:
    """Change one incident; returns whether there was anything to change. One that was removed by now is skipped."""
    try:
        if change.reverts is not None:
            return triage.undo(change, public_id)
        return SWEEPING[change.action][1](change, public_id, note_of(change))
    except ServiceError:
        return False


def carry_out_waiting() -> int:
    """Continue changes that requests did not finish; returns how many. One query by an empty index if none."""
    total, until = 0, time.monotonic() + IN_SWEEP_SECONDS
    waiting = Q(claimed_until=None) | Q(claimed_until__lt=timezone.now())
    unfinished = LoopActivity.objects.filter(waiting, finished_at=None)
    for row in unfinished.order_by("pk").only("project_id")[:MAX_WAITING]:
        claimed = _itself(row).filter(waiting, finished_at=None)
        if claimed.update(claimed_until=claim(), done_up_to=F("done_up_to")):
            change = _itself(row).select_related("loop", "reverts").get()
            carry_out(change, max(0.1, until - time.monotonic()))
            total += 1
    return total
