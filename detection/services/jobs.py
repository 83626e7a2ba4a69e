"""What people do with the jobs of workers, of all kinds."""

from __future__ import annotations

from typing import Literal, TypeVar

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from detection.models import JobState
from detection.models.jobs import Job
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, found
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

_Job = TypeVar("_Job", bound=Job)


@transaction.atomic
def cancel(
    rows: QuerySet[_Job], kind: Literal["import", "what_if"], project_id: int, public_id: str, actor: Actor
) -> _Job:
    """Cancel a job; `NotFound` if there is none, `Conflict` if it has finished. `kind` is that of its hints."""
    row = found(rows.select_for_update().filter(project_id=project_id, public_id=public_id).first())
    if not row.is_open:
        raise Conflict(f"The {kind.replace('_', '-')} is {row.state} already.")
    row.state, row.finished_at, row.finished_by = JobState.CANCELLED, timezone.now(), actor.name[:150]
    row.save(update_fields=("state", "finished_at", "finished_by"))
    audit.record(actor, f"{kind}.cancel", public_id, project_id=project_id)
    publish_after_commit(project_id, Hint(kind, public_id))
    return row
