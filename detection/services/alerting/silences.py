"""Silences: create and end. How they match is in `routing`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from detection.models import AlertSilence, Loop
from detection.services import audit, loop_activity
from detection.services.alerting.matchers import MATCHERS, check_list
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, found
from detection.services.versions import require_version, version_of

MAX_SILENCES = 200
MAX_SILENCE = timedelta(days=90)
MAX_REASON_CHARACTERS = 300


@transaction.atomic
def create_silence(
    project_id: int,
    actor: Actor,
    *,
    reason: str,
    ends_at: datetime,
    starts_at: datetime | None = None,
    loop: Loop | None = None,
    baseline: int | None = None,
    **matchers: Any,
) -> AlertSilence:
    """Suppress matching alert events until a given time.

    Parameters
    ----------
    ends_at
        After `starts_at`, at most 90 days ahead.
    starts_at
        None for now; a later time for planned maintenance.
    loop
        Only alert events of this loop.
    baseline
        See `AlertSilence`; validated by the caller.
    matchers
        ``kinds``, ``severities``, ``tools``, ``agents``, ``backends``, ``model_names``, ``tags``; none of them
        silences the project.

    Raises
    ------
    Invalid
        For the field at fault.
    Conflict
        ``too_many``.
    """
    now = timezone.now()
    starts_at = max(starts_at or now, now)
    if not reason.strip() or len(reason) > MAX_REASON_CHARACTERS:
        raise Invalid(f"`reason` must have 1 to {MAX_REASON_CHARACTERS} characters.", field="reason")
    if not starts_at < ends_at <= now + MAX_SILENCE:
        raise Invalid("`ends_at` must be after `starts_at` and at most 90 days ahead.", field="ends_at")
    if unknown := set(matchers) - set(MATCHERS):
        raise Invalid(f"`{min(unknown)}` is not a field of a silence.", field=min(unknown))
    if AlertSilence.objects.filter(project_id=project_id, ends_at__gt=now).count() >= MAX_SILENCES:
        raise Conflict(f"A project can have at most {MAX_SILENCES} silences at once.", code="too_many")
    row = AlertSilence(
        project_id=project_id,
        reason=reason.strip(),
        starts_at=starts_at,
        ends_at=ends_at,
        loop=loop,
        baseline=baseline,
        created_by=actor.name[:150],
    )
    for field in MATCHERS:
        setattr(row, field, check_list(field, matchers.get(field, ())))
    row.save()
    audit.record(actor, "silence.create", row.public_id, project_id=project_id, after=silence_as_dict(row))
    return row


def silence_as_dict(row: AlertSilence) -> dict[str, object]:
    """Return the columns of a silence as JSON values."""
    return {
        **{name: getattr(row, name) for name in (*MATCHERS, "reason", "created_by")},
        **({"loop": row.loop.public_id, "baseline": row.baseline} if row.loop else {}),
        "starts_at": row.starts_at.isoformat(),
        "ends_at": row.ends_at.isoformat(),
    }


def silence_version(row: AlertSilence) -> str:
    """Return the version of a silence as a form shows it."""
    return version_of(silence_as_dict(row))


@transaction.atomic
def end_silence(
    project_id: int, public_id: str, actor: Actor, *, version: str | None = None, is_noted: bool = True
) -> AlertSilence:
    """End a silence now. Incidents that are still open and were never sent are sent once; see `reminders`.

    Parameters
    ----------
    is_noted
        Whether the activity of the loop of *Later* notes it.

    Raises
    ------
    ChangedMeanwhile
        When it is active, and no longer the one with this `version`, as `silence_version` gave it.
    """
    rows = AlertSilence.objects.select_for_update(of=("self",)).select_related("loop")
    row = found(rows.filter(project_id=project_id, public_id=public_id).first())
    now = timezone.now()
    if row.ends_at > now:
        before = silence_as_dict(row)
        require_version(version, before)
        row.ends_at = now
        row.starts_at = min(row.starts_at, now)
        row.save(update_fields=["ends_at", "starts_at"])
        audit.record(
            actor,
            "silence.end",
            row.public_id,
            project_id=project_id,
            before=before,
            after=silence_as_dict(row),
        )
        if row.loop is not None and is_noted:
            ended = {"ends_at": before["ends_at"], "silence": row.public_id}
            loop_activity.record(row.loop, actor, "reopened", before=ended)
    return row


@transaction.atomic
def extend_again(project_id: int, public_id: str, actor: Actor, ends_at: datetime) -> None:
    """Undo the end of a silence: restore its previous end, unless that has passed."""
    row = AlertSilence.objects.select_for_update().filter(project_id=project_id, public_id=public_id).first()
    if row is not None and row.ends_at < ends_at and ends_at > timezone.now():
        before = silence_as_dict(row)
        row.ends_at, row.caught_up_at = ends_at, None
        row.save(update_fields=["ends_at", "caught_up_at"])
        audit.record(
            actor, "silence.extend", row.public_id, project_id=project_id, before=before, after=silence_as_dict(row)
        )  # fmt: skip
