"""Actions of people on incidents: acknowledge, snooze, resolve, reopen, label, comment, undo.

Opening, escalating and ending them belongs to `tracker`, the rules between them to `lifecycle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from detection.models import Incident, IncidentActivity, SessionKey
from detection.models.incidents import IncidentLabel, IncidentStatus, LabelReason
from detection.services import audit
from detection.services.alerting import outbox
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound, ServiceError
from detection.services.sessions.locked_session import locked_session
from detection.services.tracking import lifecycle
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

UNDO_WITHIN = timedelta(minutes=10)
NOTHING_TO_UNDO: Final = "You have no change to undo. Changes can be undone within 10 min."
MAX_SNOOZE = timedelta(days=90)
MAX_DUE = 500
_AWAKE: dict[str, Any] = {"snoozed_until": None, "snoozed_until_worse": False}
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
                locked = stack.enter_context(locked_session(SessionKey(project_id, session_id)))
                locked.incidents.save()  # what overdue approvals changed of it
        incident = rows.select_for_update().first()
        if incident is None:
            raise NotFound
        yield incident
        if locked is not None:
            locked.incidents.reload()


def _change(
    incident: Incident,
    actor: Actor,
    action: str,
    note: str = "",
    **fields: Any,
) -> Incident:
    """Set fields, apply the rules, keep the old values for undo, and record the change, in the same transaction."""
    old = {name: getattr(incident, name) for name in (*fields, *lifecycle.STATUS_FIELDS)}
    for name, value in fields.items():
        setattr(incident, name, value)
    lifecycle.settle(incident)
    changed = [name for name, value in old.items() if getattr(incident, name) != value]
    before = {name: _plain(old[name]) for name in changed}
    incident.save(update_fields=changed)
    IncidentActivity.objects.create(
        incident=incident, actor=actor.name, action=action, note=note[:1000], before=before,
        bulk_action_id=actor.bulk_action_id, loop_change_id=actor.loop_change_id,
    )  # fmt: skip
    audit.record(
        actor,
        f"incident.{action}",
        incident.public_id,
        project_id=incident.project_id,
        before=before,
        after={name: _plain(getattr(incident, name)) for name in changed},
    )
    outbox.record_incident_event(incident, action, actor.name, note)
    publish_after_commit(incident.project_id, Hint("incident", incident.public_id, action))
    return incident


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def acknowledge(project_id: int, public_id: str, actor: Actor, note: str = "") -> Incident:
    """Mark an incident as being handled. Acknowledging it again changes nothing.

    Raises
    ------
    Conflict
        When it is resolved.
    """
    with _locked(project_id, public_id) as incident:
        _require_unresolved(incident)
        if incident.status == IncidentStatus.ACKNOWLEDGED:
            return incident
        return _change(
            incident, actor, "acknowledged", note, status=IncidentStatus.ACKNOWLEDGED, acknowledged_by_id=actor.user_id,
            needs_acknowledgement=False, **_AWAKE,
        )  # fmt: skip


def resolve(project_id: int, public_id: str, actor: Actor, note: str = "") -> Incident:
    """Close an incident and its loop. If the loop continues in the session, that is a new incident."""
    with _locked(project_id, public_id) as incident:
        if incident.status == IncidentStatus.RESOLVED:
            return incident
        now = timezone.now()
        return _change(
            incident, actor, "resolved", note, status=IncidentStatus.RESOLVED, resolved_at=now,
            ended_at=incident.ended_at or now, needs_acknowledgement=False, **_AWAKE,
        )  # fmt: skip


def reopen(project_id: int, public_id: str, actor: Actor, note: str = "") -> Incident:
    """Open an incident again, until someone acknowledges it. Does not change whether its loop has ended."""
    with _locked(project_id, public_id) as incident:
        if incident.status == IncidentStatus.OPEN:
            return incident
        return _change(
            incident, actor, "reopened", note, status=IncidentStatus.OPEN, needs_acknowledgement=True,
            resolved_at=None, **_AWAKE,
        )  # fmt: skip


def snooze(
    project_id: int,
    public_id: str,
    actor: Actor,
    *,
    until: datetime | None = None,
    until_worse: bool = False,
    note: str = "",
) -> Incident:
    """Snooze an incident until a given time, or until a call of its loop is blocked, held or stopped.

    Parameters
    ----------
    until
        At most 90 days ahead.
    until_worse
        Wake when a call is blocked, held or stopped.

    Raises
    ------
    Conflict
        When the incident is resolved or ended.
    Invalid
        When neither is given, the time is out of range, or the loop has ended and cannot get worse.
    """
    with _locked(project_id, public_id) as incident:
        _require_unresolved(incident)
        if incident.status == IncidentStatus.ENDED:
            raise Conflict("The incident has ended; reopen it first.")
        now = timezone.now()
        if until is None and not until_worse:
            # The API computes `until` from `hours`.
            raise Invalid("`until`, `hours` or `until_worse` is required.", field="until")
        if until is None and incident.ended_at is not None:
            raise Invalid("The loop has ended and cannot get worse. Set `until`.", field="until")
        if until is not None and not now < until <= now + MAX_SNOOZE:
            raise Invalid("`until` must be in the future, at most 90 days ahead.", field="until")
        return _change(
            incident, actor, "snoozed", note, status=IncidentStatus.SNOOZED, snoozed_until=until,
            snoozed_until_worse=until_worse,
        )  # fmt: skip


def label(
    project_id: int, public_id: str, actor: Actor, value: str, note: str = "", reason: str = ""
) -> Incident:
    """Set whether an incident was a loop.

    Parameters
    ----------
    value
        ``true_loop``; ``false_alarm``, which also ends the incident; or empty to remove the label.
    reason
        Why it is not a loop, one of `LabelReason`; empty without a reason.
    """
    with _locked(project_id, public_id) as incident:
        if value not in IncidentLabel.values:
            raise Invalid("`label` must be true_loop, false_alarm or empty.", field="label")
        allowed = LabelReason.values if value == IncidentLabel.FALSE_ALARM else ("",)
        if reason not in allowed:
            words = ", ".join(filter(None, LabelReason.values))
            raise Invalid(f"`reason` must be one of {words}, with the label false_alarm.", field="reason")
        if (incident.label, incident.label_reason) == (value, reason):
            return incident
        note = "; ".join(filter(None, (_words_of(value, reason), note)))
        labelled_at = timezone.now() if value else None
        fields: dict[str, Any] = {"label": value, "label_reason": reason, "labelled_at": labelled_at}
        if value == IncidentLabel.FALSE_ALARM:
            fields["needs_acknowledgement"] = False
            if incident.status == IncidentStatus.ACKNOWLEDGED:
                fields["status"] = IncidentStatus.ENDED
        return _change(incident, actor, "labelled", note, **fields)


def _words_of(value: str, reason: str) -> str:
    why = f": {LabelReason(reason).label.partition(':')[0].lower()}" if reason else ""
    return f"{IncidentLabel(value).label.lower()}{why}"


def comment(project_id: int, public_id: str, actor: Actor, note: str) -> Incident:
    """Add a comment to the activity."""
    with _locked(project_id, public_id) as incident:
        if not note.strip() or len(note) > 1000:
            raise Invalid("`note` must have 1 to 1,000 characters.", field="note")
        return _change(incident, actor, "commented", note.strip())


def undo(project_id: int, public_id: str, actor: Actor, *, of: Mapping[str, int] | None = None) -> Incident:
    """Undo the last change of the same person, within ten minutes.

    Parameters
    ----------
    of
        Undo only if the change is a part of this action, however old it is: `bulk_action_id` or `loop_change_id`.

    Raises
    ------
    Conflict
        ``nothing_to_undo``.
    """
    is_timed = of is None
    with _locked(project_id, public_id) as incident:
        last = _undoable(incident, actor, is_timed=is_timed)
        if last is None or any(getattr(last, name) != value for name, value in (of or {}).items()):
            raise Conflict(NOTHING_TO_UNDO, code="nothing_to_undo")
        return _undo(incident, actor, last)


def _undoable(incident: Incident, actor: Actor, *, is_timed: bool) -> IncidentActivity | None:
    """Return the last change of an incident, if this person may undo it: within ten minutes, if `is_timed`."""
    last = incident.activity.filter(action__in=(*_UNDOABLE, "undone")).order_by("-at", "-id").first()
    if last is None or last.action == "undone" or last.actor != actor.name:
        return None
    return last if not is_timed or timezone.now() - last.at <= UNDO_WITHIN else None


def _undo(incident: Incident, actor: Actor, change: IncidentActivity) -> Incident:
    fields = dict(change.before)
    for name in ("snoozed_until", "resolved_at", "ended_at", "labelled_at"):
        if fields.get(name):
            fields[name] = datetime.fromisoformat(fields[name])
    if "ended_at" in fields and fields["ended_at"] is None and _has_successor(incident):
        fields.pop("ended_at")
    return _change(incident, actor, "undone", f"undid: {change.action}", **fields)


def _require_unresolved(incident: Incident) -> None:
    if incident.status == IncidentStatus.RESOLVED:
        raise Conflict("The incident is resolved; reopen it first.")


def _has_successor(incident: Incident) -> bool:
    """Whether the loop continued and has another incident by now."""
    rows = Incident.objects.filter(
        project_id=incident.project_id,
        findings__has_key=incident.calls_digest,
        ended_at=None,
        is_of_family=incident.is_of_family,
    )
    if incident.is_of_family:
        return rows.filter(session_name=incident.session_name).exists()
    return incident.session_id is not None and rows.filter(session=incident.session_id).exists()


def wake_due() -> int:
    """End the snoozes that have expired; returns how many. One query by a small index when there are none."""
    now = timezone.now()
    due = Incident.objects.filter(status=IncidentStatus.SNOOZED, snoozed_until__lte=now)
    woken = 0
    for project_id, public_id in due.order_by("snoozed_until").values_list("project_id", "public_id")[
        :MAX_DUE
    ]:
        with suppress(NotFound), _locked(project_id, public_id) as incident:
            is_due = incident.snoozed_until is not None and incident.snoozed_until <= now
            if incident.status == IncidentStatus.SNOOZED and is_due:
                _change(
                    incident, audit.SYSTEM, "woke", "the snooze ended", status=IncidentStatus.OPEN, **_AWAKE
                )
                woken += 1
    return woken


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
    """Apply one action to several incidents, each in its own transaction.

    Returns
    -------
    dict
        By id: ``done``, or the code of the error.
    """
    if action not in ACTIONS:
        raise Invalid(f"`action` must be one of {', '.join(ACTIONS)}.", field="action")
    outcome = {}
    for public_id in dict.fromkeys(public_ids):
        try:
            ACTIONS[action](project_id, public_id, actor, **arguments)
            outcome[public_id] = "done"
        except ServiceError as error:
            outcome[public_id] = error.code
    return outcome


def latest_activity(project_id: int) -> int:
    """Return the number of the latest activity of a project, for `changed_since`."""
    return IncidentActivity.objects.filter(project_id=project_id).aggregate(pk=Max("pk"))["pk"] or 0


def changed_since(project_id: int, latest: int, public_ids: Sequence[str], by: str) -> set[str]:
    """Return which of these incidents a person, `by`, has changed since."""
    rows = IncidentActivity.objects.filter(project_id=project_id, pk__gt=latest, actor=by)
    rows = rows.filter(action__in=(*_UNDOABLE, "undone"), incident__public_id__in=public_ids)
    return set(rows.values_list("incident__public_id", flat=True))
