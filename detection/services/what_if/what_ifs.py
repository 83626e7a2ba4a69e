"""What-ifs of a project: created and cancelled by people and keys, worked on by workers; see `worker`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.utils import timezone

from detection.models import Project, Session, StoredSettings, WhatIf
from detection.models.jobs import OPEN_STATES
from detection.selectors.policies import rows_at
from detection.services import audit, jobs
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid
from detection.services.policies import overrides
from detection.services.sessions import actions
from detection.services.what_if.changes import PolicyChange
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

DAYS: Final = (7, 30)
MAX_OPEN: Final = 5
"""Maximum number of waiting and running what-ifs of a project; one runs at a time."""
MAX_KEPT: Final = 200
"""Maximum number of what-ifs of a project that are kept."""
UNAVAILABLE: Final = (
    "This project stores no payloads. A what-if replays arguments and results, so it is not available."
)


def create_what_if(project_id: int, change: PolicyChange, actor: Actor, *, days: int = 7) -> WhatIf:
    """Create a what-if; a worker begins within a second.

    Parameters
    ----------
    change
        As `changes.check` returned it.
    days
        How far back the sessions go: 7 or 30.

    Raises
    ------
    Invalid
        For another number of days.
    Conflict
        ``payloads_not_stored`` if the project stores no payloads, ``too_many_what_ifs`` if too many are open.
    """
    if days not in DAYS:
        raise Invalid("`days` must be 7 or 30.", field="days", code="invalid_value")
    with transaction.atomic():
        # Locks the project, so that requests at the same time do not exceed the number together.
        project = Project.objects.select_for_update(of=("self",), no_key=True).get(pk=project_id)
        if not project.stores_payloads:
            raise Conflict(UNAVAILABLE, code="payloads_not_stored")
        if WhatIf.objects.filter(project_id=project_id, state__in=OPEN_STATES).count() >= MAX_OPEN:
            raise Conflict(
                f"{MAX_OPEN} what-ifs of this project are waiting or running. Wait until one has finished.",
                code="too_many_what_ifs",
            )
        row = WhatIf.objects.create(
            project_id=project_id,
            change=change.as_dict(),
            days=days,
            since=timezone.now() - timedelta(days=days),
            created_by=actor.name[:150],
        )
        after = {"change": row.change, "days": days}
        audit.record(actor, "what_if.create", row.public_id, project_id=project_id, after=after)
        publish_after_commit(project_id, Hint("what_if", row.public_id))
    return row


def cancel_what_if(project_id: int, public_id: str, actor: Actor) -> WhatIf:
    """Cancel a what-if. Its results so far are kept.

    Raises
    ------
    NotFound, Conflict
        If there is none, or if it has finished.
    """
    return jobs.cancel(WhatIf.objects.all(), "what_if", project_id, public_id, actor)


def save_change(
    project_id: int | None,
    change: PolicyChange,
    actor: Actor,
    note: str,
    expires_at: datetime | None = None,
    *,
    version: str | None = None,
) -> None:
    """Save a policy change through the service of its scope; `project_id` may be None for the server's override.

    Raises
    ------
    ChangedMeanwhile
        When the stored version is no longer `version`, as `replaced` gave it; None checks nothing.
    """
    if change.session and project_id is not None:
        row = Session.objects.filter(project_id=project_id, external_id=change.session).first()
        unset = dict.fromkeys(row.policy_values if row else ())
        actions.set_policy(project_id, change.session, {**unset, **change.values}, actor, version=version)
    else:
        overrides.save_override(
            project_id, change.scope, change.values, actor, note, expires_at, version=version, **change.facts
        )


def replaced(project_id: int, change: PolicyChange) -> tuple[StoredSettings | None, str]:
    """Return the stored override or tool rule that a change would replace, if any, and its version.

    The override of a session is a part of the session, so only its version is returned.
    """
    if change.session:
        row = Session.objects.filter(project_id=project_id, external_id=change.session).first()
        return None, actions.policy_version(row)
    found = rows_at(project_id, change.scope).in_effect().select_related("updated_by").first()
    return found, overrides.override_version(found)


def trim() -> None:
    """Remove the oldest what-ifs above the number that is kept. For housekeeping."""
    for project_id in WhatIf.objects.values_list("project_id", flat=True).order_by().distinct():
        rows = WhatIf.objects.filter(project_id=project_id).order_by("-pk")
        last = rows.values_list("pk", flat=True)[MAX_KEPT : MAX_KEPT + 1].first()
        if last is not None:
            rows.filter(pk__lte=last, finished_at__isnull=False).delete()
