"""What people do with loops: assign and comment; Done, Later, Fine; confirm, reopen and undo.

Done and Fine close all incidents of a loop, and Fine labels them. `services.exceptions.fine` saves the exception, too.

The figures and the state of a loop are counted by `selectors.loops`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from detection.models import Incident, Loop, LoopActivity, Membership
from detection.models.incidents import IncidentLabel, LabelReason
from detection.services import loop_activity
from detection.services.alerting import outbox, postponing, silences
from detection.services.audit import Actor, noted
from detection.services.errors import Conflict, Invalid, NotFound, ServiceError
from detection.services.incidents import loop_changes
from detection.services.incidents.loop_changes import IN_REQUEST_SECONDS
from detection.services.loop_activity import MAX_NOTE_CHARACTERS, plain

UNDO_WITHIN: Final = timedelta(minutes=10)
NOTHING_TO_UNDO: Final = "You have no change to undo. Changes can be undone within 10 min."
SWEEPING: Final = frozenset(("done", "fine", "confirm", "reopen", "undo"))
"""Verbs that change all incidents of a loop."""
_CLOSING = frozenset(("done", "fine", *(f"fine:{one}" for one in LabelReason.values if one)))
_NOT_UNDOABLE = ("commented", "came_back", "unassigned")


@contextmanager
def _locked(project_id: int, public_id: str) -> Iterator[Loop]:
    """Lock a loop for a change. Incidents can still be opened, because their lock on its key does not conflict."""
    with transaction.atomic():
        rows = Loop.objects.select_for_update(no_key=True).filter(project_id=project_id)
        loop = rows.filter(public_id=public_id).first() if "\x00" not in public_id else None
        if loop is None or not loop.incidents.exists():
            raise NotFound
        yield loop


def _change(
    loop: Loop,
    actor: Actor,
    action: str,
    note: str = "",
    fields: dict[str, object] | None = None,
    kept: Mapping[str, object] | None = None,
    **more: Any,
) -> LoopActivity:
    """Set fields of a locked loop, and record the change with the old values, and what else undo needs."""
    values = fields or {}
    before = {name: plain(getattr(loop, name)) for name in values} | dict(kept or {})
    for name, value in values.items():
        setattr(loop, name, value)
    if values:
        loop.save(update_fields=[*values])
    after = {name: plain(value) for name, value in values.items()}
    return _record(loop, actor, action, note, before=before, after=after, **more)


def _record(loop: Loop, actor: Actor, action: str, note: str, **more: Any) -> LoopActivity:
    """Record an action in the activity and the audit, and in the outbox unless it is carried out in steps first."""
    change = loop_activity.record(loop, actor, action, note, **more)
    if not change.last_incident:
        outbox.record_verb(change)
    return change


def _checked_note(note: str, *, required: bool = False) -> str:
    note = note.strip()
    if len(note) > MAX_NOTE_CHARACTERS or (required and not note):
        least = 1 if required else 0
        raise Invalid(f"`note` must have {least} to {MAX_NOTE_CHARACTERS:,} characters.", field="note")
    return note


def assign(project_id: int, public_id: str, actor: Actor, assignee: str = "") -> Loop:
    """Set the person responsible for a loop; empty for no one. Who has a loop is not reminded of it.

    Raises
    ------
    Invalid
        If the project has no member of that name.
    """
    with transaction.atomic():
        user_id = None
        if assignee:
            # Locked before the loop, as by a removal of the member, which then finds the loop.
            members = Membership.objects.select_for_update(no_key=True).filter(project_id=project_id)
            user_id = members.filter(user__username=assignee).values_list("user_id", flat=True).first()
            if user_id is None:
                raise Invalid(
                    "`assignee` must be the user name of a member of this project.", field="assignee"
                )
        with _locked(project_id, public_id) as loop:
            if loop.assignee_id != user_id:
                note = f"to {assignee}" if assignee else "to no one"
                _change(loop, actor, "assigned", note, {"assignee_id": user_id})
            return loop


def unassign_former_members(project_id: int, actor: Actor) -> None:
    """Assign loops to no one whose owner is no longer a member; must run inside the transaction of the removal.

    One query by a small index, and four for each such loop.
    """
    rows = Loop.objects.select_for_update(no_key=True, of=("self",)).select_related("assignee")
    owned = rows.filter(project_id=project_id, assignee__isnull=False)
    members = Membership.objects.filter(project_id=project_id)
    for loop in owned.exclude(assignee__in=members.values("user")).order_by("pk"):
        note = f"{loop.assignee} left the project"
        _change(loop, actor, "unassigned", note, {"assignee_id": None})


def comment(project_id: int, public_id: str, actor: Actor, note: str) -> Loop:
    """Add a comment to the activity."""
    with _locked(project_id, public_id) as loop:
        _change(loop, actor, "commented", _checked_note(note, required=True))
        return loop


def later(
    project_id: int,
    public_id: str,
    actor: Actor,
    *,
    until: datetime | None = None,
    until_worse: bool = False,
    reason: str = "",
) -> Loop:
    """Put a loop off until a time, or until it gets worse: it sends no notifications; see `services.alerting`."""
    with _locked(project_id, public_id) as loop:
        replaced = postponing.active(project_id, [loop.pk]).get(loop.pk)
        before = {"silence": replaced.public_id, "ends_at": plain(replaced.ends_at)} if replaced else None
        postponing.postpone(loop, actor, until=until, until_worse=until_worse, reason=reason)
        ends = [f"until {noted(until)}"] if until else []
        note = " or ".join([*ends, *(["until it gets worse"] if until_worse else [])])
        note = f"{note}: {reason.strip()}" if reason.strip() else note
        _record(loop, actor, "later", note, before=before)
        return loop


def reopen(project_id: int, public_id: str, actor: Actor, *, seconds: float = IN_REQUEST_SECONDS) -> Loop:
    """Bring back a loop that was put off, or remove the labels of one that is fine.

    Incidents whose loop continues are open again then. A loop that is done opens when it is detected again.
    """
    with _locked(project_id, public_id) as loop:
        if postponing.bring_back(loop, actor) is not None:
            outbox.record_verb(loop.activity.order_by("-pk")[0])
            return loop
    return _sweep(
        project_id, public_id, actor, "label_removed", "", {"label": IncidentLabel.NONE.value}, seconds
    )


def done(
    project_id: int, public_id: str, actor: Actor, note: str = "", *, seconds: float = IN_REQUEST_SECONDS
) -> Loop:
    """Close a loop with all its open incidents; it ends a postponement, too.

    If it is detected again, the loop opens: it has returned.
    """
    return _sweep(project_id, public_id, actor, "done", note, {"done_at": timezone.now()}, seconds)


def fine(
    project_id: int,
    public_id: str,
    actor: Actor,
    reason: str = "",
    note: str = "",
    *,
    seconds: float = IN_REQUEST_SECONDS,
) -> Loop:
    """Say that a loop is fine: it and all its incidents get the label "not a loop".

    Parameters
    ----------
    reason
        Why, one of `LabelReason`; empty without a reason.

    Raises
    ------
    Invalid
        For an unknown reason, or a note that is too long.
    """
    if reason not in LabelReason.values:
        words = ", ".join(filter(None, LabelReason.values))
        raise Invalid(f"`reason` must be one of {words}.", field="reason")
    change = start_fine(project_id, public_id, actor, reason, note)
    return finish(project_id, public_id, change, seconds)


def start_fine(
    project_id: int,
    public_id: str,
    actor: Actor,
    reason: str,
    note: str,
    *,
    excepted: str = "",
    siblings: bool = True,
    only: Incident | None = None,
) -> LoopActivity | None:
    """Record that a loop is fine, in the transaction of its exception; `finish` labels the incidents.

    Parameters
    ----------
    excepted
        Id of the incident whose exception was saved.
    siblings
        Whether to label the incidents.
    only
        The one incident that is labelled; the loop itself stays as it is.
    """
    if only is not None:
        action = f"fine_run:{reason}" if reason else "fine_run"
        return _start_run(public_id, actor, action, note, only, {"excepted": excepted} if excepted else None)
    action = f"fine:{reason}" if reason else "fine"
    if not siblings:
        with _locked(project_id, public_id) as loop:
            return _change(loop, actor, "excepted", _checked_note(note), kept={"excepted": excepted})
    fields: dict[str, object] = {"label": IncidentLabel.FALSE_ALARM.value}
    return _start_sweep(
        project_id,
        public_id,
        actor,
        action,
        _checked_note(note),
        fields,
        kept={"excepted": excepted} if excepted else None,
    )


def finish(project_id: int, public_id: str, change: LoopActivity | None, seconds: float) -> Loop:
    """Carry out a change that was recorded, for at most these seconds; a worker continues."""
    if change is None:
        return Loop.objects.get(project_id=project_id, public_id=public_id)
    if change.last_incident:
        loop_changes.carry_out(change, seconds)
    return change.loop


def confirm(
    project_id: int,
    public_id: str,
    actor: Actor,
    note: str = "",
    *,
    run: str = "",
    seconds: float = IN_REQUEST_SECONDS,
) -> Loop:
    """Confirm that a loop and all its incidents were loops; with the id of an incident as `run`, only that one."""
    if run:
        rows = Incident.objects.filter(project_id=project_id, loop__public_id=public_id)
        only = rows.filter(public_id=run).first() if "\x00" not in public_id + run else None
        if only is None:
            raise NotFound
        change = _start_run(public_id, actor, "confirmed_run", note, only)
        return finish(project_id, public_id, change, seconds)
    return _sweep(
        project_id, public_id, actor, "confirmed", note, {"label": IncidentLabel.TRUE_LOOP.value}, seconds
    )


def _sweep(
    project_id: int,
    public_id: str,
    actor: Actor,
    action: str,
    note: str,
    fields: dict[str, object],
    seconds: float,
) -> Loop:
    """Change all incidents of a loop: for at most these seconds, a worker continues."""
    change = _start_sweep(project_id, public_id, actor, action, _checked_note(note), fields)
    return finish(project_id, public_id, change, seconds)


def _start_run(
    public_id: str,
    actor: Actor,
    action: str,
    note: str,
    only: Incident,
    kept: Mapping[str, object] | None = None,
) -> LoopActivity:
    """Record a change of one incident of a loop, which this process then carries out; the loop stays as it is."""
    with _locked(only.project_id, public_id) as loop:
        return _change(
            loop, actor, action, _checked_note(note), kept=kept, done_up_to=only.pk - 1, last_incident=only.pk,
            finished_at=None, claimed_until=loop_changes.claim(),
        )  # fmt: skip


def _start_sweep(
    project_id: int,
    public_id: str,
    actor: Actor,
    action: str,
    note: str,
    fields: dict[str, object],
    *,
    kept: Mapping[str, object] | None = None,
) -> LoopActivity | None:
    """Record a change of all incidents of a loop, which this process then carries out; None if nothing changes."""
    with _locked(project_id, public_id) as loop:
        closed = postponing.active(project_id, [loop.pk]).get(loop.pk) if action in _CLOSING else None
        # Closing again sets a new time only if there is something to close.
        is_same = all(
            getattr(loop, name) == value or (name == "done_at" and loop.done_at is not None)
            for name, value in fields.items()
        )
        concerned = loop.incidents.filter(loop_changes.SWEEPING[action][0])
        if not (note or kept or closed) and is_same and not concerned.exists():
            return None
        kept = dict(kept or {})
        if closed is not None:
            kept |= {"silence": closed.public_id, "ends_at": plain(closed.ends_at)}
            silences.end_silence(project_id, closed.public_id, actor, is_noted=False)
        newest = loop.incidents.aggregate(newest=Max("pk"))["newest"] or 0
        return _change(
            loop, actor, action, note, fields, kept,
            last_incident=newest, finished_at=None, claimed_until=loop_changes.claim(),
        )  # fmt: skip


def undo(
    project_id: int,
    public_id: str,
    actor: Actor,
    *,
    seconds: float = IN_REQUEST_SECONDS,
    of: int | None = None,
) -> Loop:
    """Undo the last change of the same person, within ten minutes, including its changes to incidents.

    Parameters
    ----------
    of
        Undo only if the last change is this row of the activity, however old it is.

    Raises
    ------
    Conflict
        ``nothing_to_undo``.
    """
    with _locked(project_id, public_id) as loop:
        last = undoable(loop, actor.name, is_timed=of is None)
        if last is None or of not in (None, last.pk):
            raise Conflict(NOTHING_TO_UNDO, code="nothing_to_undo")
        more: dict[str, object] = {"reverts": last}
        if last.last_incident:
            rows = LoopActivity.objects.filter(project_id=project_id, pk=last.pk, finished_at=None)
            rows.update(finished_at=timezone.now())
            more |= {
                "last_incident": last.last_incident, "finished_at": None, "claimed_until": loop_changes.claim(),
            }  # fmt: skip
        fields = {name: value for name, value in last.before.items() if name != "excepted"}
        if last.action == "later":
            postponing.bring_back(loop, actor)
        if "silence" in fields:
            ends_at = datetime.fromisoformat(fields.pop("ends_at"))
            silences.extend_again(project_id, fields.pop("silence"), actor, ends_at)
        members = Membership.objects.filter(project_id=project_id)
        if "assignee_id" in fields and not members.filter(user=fields["assignee_id"]).exists():
            fields["assignee_id"] = None  # has left since
        if fields.get("done_at"):
            fields["done_at"] = datetime.fromisoformat(fields["done_at"])
        change = _change(loop, actor, "undone", f"undid: {last.action}", fields, None, **more)
    if change.last_incident:
        loop_changes.carry_out(change, seconds)
    return loop


def undoable(loop: Loop, actor_name: str, *, is_timed: bool = True) -> LoopActivity | None:
    """Return the last change of a loop, if this person may undo it: within ten minutes, if `is_timed`."""
    last = loop.activity.exclude(action__in=_NOT_UNDOABLE).order_by("-at", "-id").first()
    if last is None or last.action == "undone" or last.actor != actor_name:
        return None
    return last if not is_timed or timezone.now() - last.at <= UNDO_WITHIN else None


ACTIONS: dict[str, Callable[..., Loop]] = {
    "assign": assign,
    "done": done,
    "later": later,
    "fine": fine,
    "confirm": confirm,
    "reopen": reopen,
    "undo": undo,
}


def bulk(
    project_id: int,
    public_ids: list[str],
    action: str,
    actor: Actor,
    *,
    actions: Mapping[str, Callable[..., Loop]] = ACTIONS,
    **arguments: Any,
) -> dict[str, str]:
    """Apply one action to several loops.

    Parameters
    ----------
    actions
        The actions by name.

    Returns
    -------
    dict
        By id: ``done``, or the code of the error.
    """
    if action not in actions:
        raise Invalid(f"`action` must be one of {', '.join(actions)}.", field="action")
    outcome, until = {}, time.monotonic() + IN_REQUEST_SECONDS
    for public_id in dict.fromkeys(public_ids):
        if action in SWEEPING:
            arguments["seconds"] = max(0.0, until - time.monotonic())
        try:
            actions[action](project_id, public_id, actor, **arguments)
            outcome[public_id] = "done"
        except ServiceError as error:
            outcome[public_id] = error.code
    return outcome


def latest_activity(project_id: int) -> int:
    """Return the number of the latest activity of a project, for `changed_since`."""
    return LoopActivity.objects.filter(project_id=project_id).aggregate(pk=Max("pk"))["pk"] or 0


def changed_since(project_id: int, latest: int, public_ids: Sequence[str], by: str) -> set[str]:
    """Return which of these loops a person, `by`, has changed since."""
    rows = LoopActivity.objects.filter(project_id=project_id, pk__gt=latest, actor=by[:150])
    return {*rows.filter(loop__public_id__in=public_ids).values_list("loop__public_id", flat=True)}
