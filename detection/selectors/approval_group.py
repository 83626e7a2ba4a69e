"""The group of an approval: what one answer is for. A loop, else a containment, else one call."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import Case, Q, QuerySet, Value, When
from django.db.models.functions import Concat

from detection.models import Approval
from detection.models.approvals import CONTAINMENT

_CALL: Final = "call_"
_LOOP: Final = "loop_"
_GROUP: Final = Case(
    When(kind=CONTAINMENT, then="calls_digest"),
    When(incident__isnull=False, then="incident__loop__public_id"),
    default=Concat(Value(_CALL), "call_key"),
)


def in_group(group: str) -> Q:
    """Return the condition of approvals that belong to a group, whatever their state."""
    if group.startswith(_LOOP):
        return Q(incident__loop__public_id=group) & ~Q(kind=CONTAINMENT)
    if group.startswith(_CALL):
        return Q(call_key=group.removeprefix(_CALL), incident=None) & ~Q(kind=CONTAINMENT)
    return Q(kind=CONTAINMENT, calls_digest=group)


def with_group(rows: QuerySet[Approval]) -> QuerySet[Any]:
    """Return approvals with the id of their group as `group`."""
    return rows.annotate(group=_GROUP)


def held_by(group: str) -> str:
    """Return what a group stands for: ``loop``, ``containment`` or ``call``."""
    if group.startswith(_CALL):
        return "call"
    return "loop" if group.startswith(_LOOP) else "containment"
