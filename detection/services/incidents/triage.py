"""What people do with incidents. Opening, escalating and ending them is detection's business, see `findings`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from detection.models import Incident, IncidentActivity
from detection.models.incidents import IncidentLabel, IncidentStatus
from detection.services import audit
from detection.services.alerting import outbox
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound, ServiceError
from detection.services.sessions.locked_session import locked_session
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

UNDO_WITHIN = timedelta(minutes=10)
MAX_SNOOZE = timedelta(days=90)
_UNDOABLE = ("acknowledged", "resolved", "reopened", "snoozed", "labelled")


@contextmanager
def _locked(project_id: int, public_id: str) -> Iterator[Incident]:
    """Lock an incident for a change, with its session, whose state follows from its incidents."""
    rows = Incident.objects.filter(project_id=project_id, public_id=public_id)
    session_id = rows.values_list("session_id", flat=True).first()
    with transaction.atomic(), ExitStack() as stack:
        locked = None
        if session_id is not None:
            with suppress(NotFound):  # removed by now; the incident stays
                locked = stack.enter_context(locked_session(session_id))
        incident = rows.select_for_update().first()
        if incident is None:
            raise NotFound("There is no such incident in this project.")
        yield incident
        if locked is not None:
            locked.reload_incidents()


def _change(incident: Incident, actor: Actor, action: str, note: str = "", **fields: Any) -> Incident:
    """Set fields, remember what they were for undo, and write activity and audit in the same transaction."""
    before = {name: _plain(getattr(incident, name)) for name in fields}
    for name, value in fields.items():
        setattr(incident, name, value)
    incident.save(update_fields=[*fields])
    IncidentActivity.objects.create(
        incident=incident, actor=actor.name, action=action, note=note[:1000], before=before
    )
    audit.record(
        actor,
        f"incident.{action}",
        incident.public_id,
        project_id=incident.project_id,
        before=before,
        after={name: _plain(value) for name, value in fields.items()},
    )
    outbox.record_incident_event(incident, action, actor.name, note)
    publish_after_commit(incident.project_id, Hint("incident", incident.public_id, action))
    return incident


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def acknowledge(project_id: int, public_id: str, actor: Actor) -> Incident:
    """Say that somebody looks after it. Acknowledging again changes nothing."""
    with _locked(project_id, public_id) as incident:
        if incident.status == IncidentStatus.RESOLVED:
            raise Conflict("The incident is resolved; reopen it first.")
        if incident.status == IncidentStatus.ACKNOWLEDGED:
            return incident
        return _change(
            incident, actor, "acknowledged", status=IncidentStatus.ACKNOWLEDGED, acknowledged_by_id=actor.user_id,
            snoozed_until=None, snoozed_until_worse=False,
        )  # fmt: skip


def resolve(project_id: int, public_id: str, actor: Actor, note: str = "") -> Incident:
    """Close it. If the same loop is found again in the session, that is a new incident."""
    with _locked(project_id, public_id) as incident:
        if incident.status == IncidentStatus.RESOLVED:
            return incident
        now = timezone.now()
        return _change(
            incident, actor, "resolved", note, status=IncidentStatus.RESOLVED, resolved_at=now,
            ended_at=incident.ended_at or now, snoozed_until=None, snoozed_until_worse=False,
        )  # fmt: skip


def reopen(project_id: int, public_id: str, actor: Actor) -> Incident:
    """Take a resolution, snooze or acknowledgement back. Whether the loop itself has ended stays as it is."""
    with _locked(project_id, public_id) as incident:
        if incident.status == IncidentStatus.OPEN:
            return incident
        return _change(
            incident, actor, "reopened", status=IncidentStatus.OPEN, resolved_at=None, snoozed_until=None, snoozed_until_worse=False
        )  # fmt: skip


def snooze(
    project_id: int, public_id: str, actor: Actor, *, until: datetime | None = None, until_worse: bool = False
) -> Incident:
    """Put it aside until a time, or until a call of it is blocked; nothing is put aside for ever.

    Parameters
    ----------
    until
        At most 90 days ahead.
    until_worse
        Wake when the loop reaches a stricter reaction.
    """
    with _locked(project_id, public_id) as incident:
        if incident.status == IncidentStatus.RESOLVED:
            raise Conflict("The incident is resolved; reopen it first.")
        now = timezone.now()
        if until is None and not until_worse:
            raise Invalid("Say until when, or until it gets worse.", field="until")
        if until is not None and not now < until <= now + MAX_SNOOZE:
            raise Invalid("A snooze ends in the future, at most 90 days ahead.", field="until")
        return _change(
            incident, actor, "snoozed", status=IncidentStatus.SNOOZED, snoozed_until=until, snoozed_until_worse=until_worse
        )  # fmt: skip


def label(project_id: int, public_id: str, actor: Actor, value: str, note: str = "") -> Incident:
    """Say whether it was a loop: ``true_loop``, ``false_alarm``, or an empty text to take the label back."""
    with _locked(project_id, public_id) as incident:
        if value not in IncidentLabel.values:
            raise Invalid("A label is true_loop or false_alarm, or empty for none.", field="label")
        if incident.label == value:
            return incident
        return _change(incident, actor, "labelled", note, label=value)


def comment(project_id: int, public_id: str, actor: Actor, note: str) -> Incident:
    """Add a remark to the activity."""
    with _locked(project_id, public_id) as incident:
        if not note.strip() or len(note) > 1000:
            raise Invalid("A comment has 1 to 1,000 characters.", field="note")
        return _change(incident, actor, "commented", note.strip())


def undo(project_id: int, public_id: str, actor: Actor) -> Incident:
    """Take back what the same person did last, within ten minutes."""
    with _locked(project_id, public_id) as incident:
        last = incident.activity.filter(action__in=(*_UNDOABLE, "undone")).order_by("-at", "-id").first()
        is_own = last is not None and last.actor == actor.name and timezone.now() - last.at <= UNDO_WITHIN
        if last is None or last.action == "undone" or not is_own:
            raise Conflict("There is nothing of yours to undo.", code="nothing_to_undo")
        fields = dict(last.before)
        for name in ("snoozed_until", "resolved_at", "ended_at"):
            if fields.get(name):
                fields[name] = datetime.fromisoformat(fields[name])
        is_taken = (
            "ended_at" in fields
            and fields["ended_at"] is None
            and Incident.objects.filter(
                session=incident.session, loop_id=incident.loop_id, ended_at=None
            ).exists()
        )
        if is_taken:
            fields.pop("ended_at")  # the loop came back meanwhile and has an incident of its own
        return _change(incident, actor, "undone", f"took back: {last.action}", **fields)


ACTIONS: dict[str, Callable[..., Incident]] = {
    "acknowledge": acknowledge,
    "resolve": resolve,
    "reopen": reopen,
    "snooze": snooze,
    "label": label,
    "undo": undo,
}


def bulk(
    project_id: int, public_ids: list[str], action: str, actor: Actor, **arguments: Any
) -> dict[str, str]:
    """Do one thing to several incidents, each in its own transaction.

    Returns
    -------
    dict
        Per id ``done`` or the code of what stood against it.
    """
    if action not in ACTIONS:
        raise Invalid(f"An action is one of {', '.join(ACTIONS)}.", field="action")
    outcome = {}
    for public_id in dict.fromkeys(public_ids):
        try:
            ACTIONS[action](project_id, public_id, actor, **arguments)
            outcome[public_id] = "done"
        except ServiceError as error:
            outcome[public_id] = error.code
    return outcome
