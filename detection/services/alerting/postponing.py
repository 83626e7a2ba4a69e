"""Puts loops off: silences of *Later* that end at a time or when the loop gets worse.

A loop gets worse when more incidents of it open within 24 hours than in the 24 hours before it was put off (at
least one). Incidents from before do not count, so that it does not end with the next incident.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.utils import timezone

from detection.models import AlertSilence, Incident, Loop
from detection.services import audit, loop_activity
from detection.services.alerting import silences
from detection.services.audit import Actor
from detection.services.errors import Invalid

WINDOW: Final = timedelta(hours=24)
MAX_DUE = 500


def postpone(
    loop: Loop, actor: Actor, *, until: datetime | None, until_worse: bool, reason: str
) -> AlertSilence:
    """Put off a loop whose row is locked; a postponement that is active ends.

    Parameters
    ----------
    until
        None for 90 days, the longest time; only with `until_worse`.

    Raises
    ------
    Invalid
        For the field at fault.
    """
    now = timezone.now()
    if until is None and not until_worse:
        # The API computes `until` from `hours`.
        raise Invalid("`until`, `hours` or `until_worse` is required.", field="until")
    if until is not None and not now < until <= now + silences.MAX_SILENCE:
        raise Invalid("`until` must be in the future, at most 90 days ahead.", field="until")
    bring_back(loop, actor)
    words = "Later, until it gets worse" if until_worse else "Later"
    return silences.create_silence(
        loop.project_id,
        actor,
        reason=reason.strip() or words,
        ends_at=until or now + silences.MAX_SILENCE,
        loop=loop,
        baseline=max(1, _opened_between(loop.project_id, loop.pk, now - WINDOW, now))
        if until_worse
        else None,
    )


def active(project_id: int, loop_ids: Iterable[int]) -> dict[int, AlertSilence]:
    """Return the active postponements by loop; one query."""
    now = timezone.now()
    rows = AlertSilence.objects.filter(project_id=project_id, loop__in=loop_ids)
    rows = rows.filter(starts_at__lte=now, ends_at__gt=now).order_by("ends_at")
    return {row.loop_id: row for row in rows if row.loop_id}


def bring_back(loop: Loop, actor: Actor) -> AlertSilence | None:
    """End the active postponement of a loop whose row is locked; return it, or None if there is none."""
    silence = active(loop.project_id, [loop.pk]).get(loop.pk)
    return silence and silences.end_silence(loop.project_id, silence.public_id, actor)


def _opened_between(project_id: int, loop_id: int, after: datetime, until: datetime) -> int:
    # The first condition has the index: an incident was last seen after it was opened.
    return Incident.objects.filter(
        project_id=project_id,
        loop=loop_id,
        last_seen_at__gt=after,
        opened_at__gt=after,
        opened_at__lte=until,
    ).count()


def is_worse(silence: AlertSilence, now: datetime) -> bool:
    """Return whether a loop that is put off has become worse by a time; one query by index."""
    if silence.baseline is None or silence.loop_id is None:
        return False
    since = max(silence.starts_at, now - WINDOW)
    return _opened_between(silence.project_id, silence.loop_id, since, now) > silence.baseline


def end_if_worse(silence: AlertSilence) -> bool:
    """End the postponement of a loop that has become worse; return whether it is over. Costs nothing for others."""
    if not is_worse(silence, timezone.now()):
        return False
    with transaction.atomic():
        rows = AlertSilence.objects.select_for_update(of=("self",)).select_related("loop")
        current = rows.get(project_id=silence.project_id, pk=silence.pk)
        now = timezone.now()
        if current.ends_at <= now or current.loop is None:
            return True
        note = f"more than {current.baseline} new incident{'' if current.baseline == 1 else 's'} in 24 hours"
        current.ends_at = now
        current.save(update_fields=["ends_at"])
        loop_activity.record(current.loop, audit.SYSTEM, "came_back", note)
    return True


def wake_due() -> int:
    """End the postponements of loops that got worse; returns how many. One query by a small index if there are none."""
    now = timezone.now()
    rows = AlertSilence.objects.filter(
        loop__isnull=False, baseline__isnull=False, starts_at__lte=now, ends_at__gt=now
    )
    return sum(end_if_worse(silence) for silence in rows.order_by("pk")[:MAX_DUE])


def note_end(silence: AlertSilence) -> None:
    """Note in the activity of its loop that a postponement has ended by its time, unless another end is noted."""
    if silence.loop is None:
        return
    entries = silence.loop.activity.filter(action__in=("later", "reopened", "came_back"))
    last = entries.order_by("-at", "-id").values_list("action", flat=True).first()
    if last == "later":
        loop_activity.record(silence.loop, audit.SYSTEM, "came_back", "the time ran out")
