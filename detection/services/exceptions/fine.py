"""Accepts a loop as fine: the label of all its incidents with an exception, and undo of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import transaction

from detection.models import Incident, Loop, LoopActivity
from detection.models.incidents import LabelReason
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.exceptions import exceptions
from detection.services.exceptions.exceptions import PLACES, ExceptionOption
from detection.services.incidents import loop_triage
from detection.services.incidents.loop_changes import IN_REQUEST_SECONDS
from detection.services.incidents.loop_triage import (
    changed_since,
    comment,
    latest_activity,
)

__all__ = [
    "ACTIONS", "PLACES", "bulk", "changed_since", "choices", "comment", "fine", "latest_activity", "run_of", "undo",
]  # fmt: skip


RUN: Final = "run"


class FinePlace(NamedTuple):
    """A place where a loop may be fine, with the exception for it."""

    where: str
    option: ExceptionOption


def choices(project_id: int, public_id: str, reason: str = "", run: str = "") -> list[FinePlace]:
    """Return where a loop may be fine, narrowest first, each with the exception of an incident.

    Parameters
    ----------
    run
        Id of the incident; empty for the newest one.

    Raises
    ------
    NotFound
        Without incidents, or if it has not this one.
    """
    incident = run_of(project_id, public_id, run)
    found = [(place, exceptions.where(incident, place, reason)) for place in PLACES]
    return [FinePlace(place, option) for place, option in found if option is not None]


def fine(
    project_id: int,
    public_id: str,
    actor: Actor,
    reason: str = "",
    note: str = "",
    *,
    where: str = "",
    run: str = "",
    expires_at: datetime | None = None,
    siblings: bool = True,
    seconds: float = IN_REQUEST_SECONDS,
) -> Loop:
    """Say that a loop is fine: label its incidents "not a loop", and save an exception.

    Parameters
    ----------
    reason
        Why, one of `LabelReason`; empty without a reason.
    where
        One of `PLACES`; empty for no exception. For `run`, only that incident is labelled, and the exception, which a
        session that has ended does not need, is for its session.
    run
        Id of the incident that the exception is made from; empty for the newest one.
    expires_at
        End of the exception; None for none. One for a run ends with its session.
    siblings
        Whether all incidents of the loop are labelled. Otherwise only the exception is saved.

    Raises
    ------
    NotFound, Invalid, Conflict
        As of `create_exception` and `loop_triage.fine`.
    """
    if reason not in LabelReason.values:
        words = ", ".join(filter(None, LabelReason.values))
        raise Invalid(f"`reason` must be one of {words}.", field="reason")
    if not where:
        if expires_at is not None or not siblings:
            raise Invalid("`where` is required: it says where the exception applies.", field="where")
        return loop_triage.fine(project_id, public_id, actor, reason, note, seconds=seconds)
    incident = run_of(project_id, public_id, run)
    option = exceptions.where(incident, where, reason) if where in PLACES else None
    is_one_run = where == RUN
    if option is None and not is_one_run:
        names = ", ".join(choice.where for choice in choices(project_id, public_id, reason))
        raise Invalid(f"`where` must be one of {names}.", field="where")
    because = note.strip() or (LabelReason(reason).label.partition(":")[0] if reason else "")
    with transaction.atomic():
        entry = None
        if option is not None:
            entry = exceptions.create_exception(
                project_id, incident.public_id, actor, option.id, note=because, expires_at=expires_at
            )
        change = loop_triage.start_fine(
            project_id,
            public_id,
            actor,
            reason,
            note or (entry.note if entry else ""),
            excepted=incident.public_id if entry else "",
            siblings=siblings,
            only=incident if is_one_run else None,
        )
    return loop_triage.finish(project_id, public_id, change, seconds)


def undo(
    project_id: int,
    public_id: str,
    actor: Actor,
    *,
    seconds: float = IN_REQUEST_SECONDS,
    of: int | None = None,
) -> Loop:
    """Undo the last action of the same person on a loop, with the exception that it saved; see `loop_triage.undo`.

    Settings that were changed since the exception stay.

    Raises
    ------
    NotFound
        For a loop of another project.
    Conflict
        ``nothing_to_undo``.
    """
    rows = Loop.objects.filter(project_id=project_id)
    loop = rows.filter(public_id=public_id).first() if "\x00" not in public_id else None
    last = loop_triage.undoable(loop, actor.name, is_timed=of is None) if loop is not None else None
    undone = loop_triage.undo(project_id, public_id, actor, seconds=seconds, of=of)
    if last is not None and (excepted := _excepted(last)):
        with suppress(Conflict, NotFound):
            exceptions.undo_exception(project_id, excepted, actor)
    return undone


def _excepted(change: LoopActivity) -> str:
    return str(change.before.get("excepted", ""))


def run_of(project_id: int, public_id: str, run: str = "") -> Incident:
    """Return an incident of a loop, or its newest one; `NotFound` if there is none."""
    if "\x00" in public_id + run:
        raise NotFound
    rows = Incident.objects.select_related("session").filter(project_id=project_id, loop__public_id=public_id)
    if run:
        rows = rows.filter(public_id=run)
    found = rows.order_by("-last_seen_at", "-pk").first()
    if found is None:
        raise NotFound
    return found


ACTIONS: Final[Mapping[str, Callable[..., Loop]]] = {**loop_triage.ACTIONS, "fine": fine, "undo": undo}


def bulk(
    project_id: int, public_ids: Sequence[str], action: str, actor: Actor, **arguments: Any
) -> dict[str, str]:
    """Apply one action to several loops; see `loop_triage.bulk`."""
    return loop_triage.bulk(project_id, [*public_ids], action, actor, actions=ACTIONS, **arguments)
