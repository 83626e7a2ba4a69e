"""What has changed in a project since a person's last visit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import Exists, OuterRef, Q, Sum
from django.utils import timezone

from detection.models import (
    Approval,
    ApprovalState,
    AuditEntry,
    Incident,
    Loop,
    LoopStatus,
    Notification,
    NotificationState,
)
from detection.models.incidents import IS_LOOP
from detection.selectors.loop_status import firing_postponements, status_condition
from detection.selectors.loops import LoopChange, changes_since
from detection.selectors.statistics import SAVED

SHOWN: Final = 5
"""Changes of each kind, the newest; the rest is behind a link. As of silent sessions."""
COUNTED: Final = 100
"""What is only counted stops here; a judgement."""


@dataclass(frozen=True, slots=True)
class SinceVisit:
    """What has changed.

    Attributes
    ----------
    at
        When the visit before this one ended.
    loops
        Open loops that are new, returned or worse.
    ended, firing
        Loops of since then that ended by themselves, and those that are put off but were detected again, counted up
        to `COUNTED`.
    policies
        Changes of settings, the newest first.
    failed
        Notifications that could not be delivered, the newest first.
    expired
        Held calls that nobody answered in time, counted up to `COUNTED`.
    cost_usd, saved_usd
        Of the loops that began since then: their cost, and an estimate of what blocking their calls has saved.
    """

    at: datetime
    loops: list[LoopChange]
    ended: int
    firing: int
    policies: list[AuditEntry]
    failed: list[Notification]
    expired: int
    cost_usd: float
    saved_usd: float

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed."""
        return not (
            self.loops
            or self.ended
            or self.firing
            or self.policies
            or self.failed
            or self.expired
            or self.cost_usd
        )


def since_visit(project_id: int, at: datetime) -> SinceVisit:
    """Return what has changed in a project since a time; seven bounded queries beside those of the loops."""
    now = timezone.now()
    of_loop = Incident.objects.filter(project=OuterRef("project"), loop=OuterRef("pk"), opened_at__gt=at)
    ended = Loop.objects.filter(
        status_condition(LoopStatus.DONE, now), Exists(of_loop), project_id=project_id, done_at=None
    )
    policies = AuditEntry.objects.filter(project_id=project_id, action__startswith="policy.", at__gt=at)
    failed = Notification.objects.filter(
        project_id=project_id, state=NotificationState.FAILED, finished_at__gt=at
    )
    expired = Approval.objects.filter(project_id=project_id, state=ApprovalState.EXPIRED, decided_at__gt=at)
    began = Incident.objects.filter(Q(IS_LOOP), project_id=project_id, opened_at__gt=at)
    spent = began.aggregate(cost=Sum("cost_usd"), saved=Sum(SAVED))
    return SinceVisit(
        at,
        changes_since(project_id, at)[:SHOWN],
        ended.order_by().values("pk")[:COUNTED].count(),
        firing_postponements(now).filter(project_id=project_id).values("pk")[:COUNTED].count(),
        list(policies.order_by("-id")[:SHOWN]),
        list(failed.select_related("destination").order_by("-id")[:SHOWN]),
        expired.values("pk")[:COUNTED].count(),
        float(spent["cost"] or 0),
        float(spent["saved"] or 0),
    )
