"""Brings sessions and held calls in line with the containments in force.

New calls need none of this. It is for what waits: calls on hold, and rows that people look at. Whoever notices first
does it: the request that changed a containment, the processes whose agents wait, and the sweep of the workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from django.db.models import Prefetch, Q, QuerySet

from detection import clock
from detection.models import (
    Approval,
    ApprovalState,
    Containment,
    ContainmentReaction,
    Project,
    Session,
    SessionKey,
    SessionState,
    StoppedByKind,
)
from detection.models.approvals import CONTAINMENT
from detection.models.session_state import STOP_STATES
from detection.selectors.ancestors import ancestors_of
from detection.selectors.containments import (
    Caller,
    ProjectContainments,
    containments_of,
    in_force,
    reached_sessions,
)
from detection.services.errors import NotFound
from detection.services.sessions import containment
from detection.services.sessions.locked_session import locked_session

SETTLE_SECONDS: Final = 2.0
"""How long a request settles sessions: some 500 on a small machine. The sweep does the rest."""
MAX_AT_ONCE: Final = 1_000
RECENT: Final = timedelta(hours=1)
"""For how long after its end a containment is looked after; a session that calls later corrects its row itself."""


def settle(projects: Sequence[int], seconds: float = SETTLE_SECONDS) -> int:
    """Settle the sessions of projects, those with held calls first; returns how many were written."""
    until = time.monotonic() + seconds
    settled = 0
    for project in Project.objects.filter(pk__in=projects):
        for key in _unsettled(project):
            if time.monotonic() > until:
                return settled
            settled += _settle(key)
    return settled


def settle_due() -> int:
    """Settle the sessions of all projects that a containment has changed lately. Used by the sweep."""
    return settle(_changed_projects())


def settle_waiting(approval_ids: Iterable[str]) -> None:
    """Settle the sessions of calls that agents wait for. One query while no containment was in force lately."""
    if not (projects := _changed_projects()):
        return
    held = Approval.objects.filter(
        project_id__in=projects, public_id__in=[*approval_ids], state=ApprovalState.OPEN
    )
    until = time.monotonic() + SETTLE_SECONDS
    for approval in held.select_related("session__project"):
        session = approval.session
        if time.monotonic() > until:
            return  # the next look continues
        if _is_unsettled(containments_of(session.project), session, [approval]):
            _settle(session.key)


def _changed_projects() -> list[int]:
    now = clock.now()
    lately = Q(lifted_at__gt=now - RECENT) | Q(until__gt=now - RECENT, until__lte=now, lifted_at=None)
    rows = Containment.objects.filter(lately) | in_force(now)
    if rows.filter(project=None).exists():
        return [*Project.objects.order_by("pk").values_list("pk", flat=True)]
    return [*rows.order_by("project").values_list("project_id", flat=True).distinct()]


def _settle(key: SessionKey) -> bool:
    """Settle a session; one that another process has locked is being settled there, or at the next look."""
    with suppress(NotFound), locked_session(key, wait=False) as locked:
        containment.settle(locked)
        return True
    return False


def _unsettled(project: Project) -> Iterator[SessionKey]:
    """Yield the sessions of a project whose row or held calls differ from what is in force."""
    found = containments_of(project)
    sessions = Session.objects.filter(project_id=project.pk)
    for session in _with_held(sessions.filter(state=SessionState.HELD))[:MAX_AT_ONCE]:
        if _is_unsettled(found, session, session.approvals.all()):
            yield session.key
    marked = sessions.filter(state__in=STOP_STATES, stopped_by_kind=StoppedByKind.CONTAINMENT)
    for session in marked.order_by("-last_event_at")[:MAX_AT_ONCE]:
        if _is_unsettled(found, session, ()):
            yield session.key
    for rule in found.rules:
        if rule.reaction == ContainmentReaction.STOP and not rule.is_of_calls:
            rows = reached_sessions([project.pk], rule.scope, rule.value, rule.tool, clock.now())
            if not rule.include_new:
                rows = rows.filter(started_at__lte=rule.created_at)
            rows = rows.filter(stopped_by_kind="")
            for session in rows.order_by("-last_event_at")[:MAX_AT_ONCE]:
                yield session.key


def _with_held(sessions: QuerySet[Session]) -> QuerySet[Session]:
    held = Approval.objects.filter(state=ApprovalState.OPEN)
    return sessions.prefetch_related(Prefetch("approvals", held)).order_by("-last_event_at")


def _is_unsettled(found: ProjectContainments, session: Session, held: Iterable[Approval]) -> bool:
    """Return whether `containment.settle` would change a session, without its lock."""
    family: tuple[str, ...] = ()
    if found.needs_family:
        above = ancestors_of(session)
        family = above.names if above else (session.external_id, session.parent_external_id)
    for approval in held:
        rule = found.covering(Caller.of(session, family, agent=approval.agent), approval.tool)
        if rule is not None and rule.reaction != ContainmentReaction.HOLD:
            return True
        if approval.kind == CONTAINMENT and (rule is None or rule.public_id != approval.calls_digest):
            return True
    if session.stopped_by_kind != StoppedByKind.CONTAINMENT:
        return False
    return found.covering(Caller.of(session, family), session.last_tool) is None
