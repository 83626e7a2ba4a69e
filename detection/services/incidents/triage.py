"""What a verb of a loop changes of one of its incidents: close it, label it, or undo that.

Opening, escalating and ending incidents belongs to `tracker`, the rules of their status to `lifecycle`. `loop_changes`
carries the changes out on all incidents of a loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from detection.models import Incident, IncidentActivity, LoopActivity, SessionKey
from detection.models.incidents import IncidentLabel, IncidentStatus, LabelReason
from detection.services.errors import NotFound
from detection.services.loop_activity import plain
from detection.services.sessions.locked_session import locked_session
from detection.services.tracking import lifecycle
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

_CHANGES: Final = ("done", "labelled", "undone")


@contextmanager
def _locked(verb: LoopActivity, public_id: str) -> Iterator[Incident]:
    """Lock an incident for a change, with its session, whose state follows from its incidents.

    Raises
    ------
    NotFound
        If there is none, or the verb was undone meanwhile: its undo does not come back to an incident.
    """
    project_id = verb.project_id
    rows = Incident.objects.filter(project_id=project_id, public_id=public_id)
    session_id = rows.values_list("session_id", flat=True).first()
    with transaction.atomic(), ExitStack() as stack:
        locked = None
        if session_id is not None:
            with suppress(NotFound):  # removed by now; the incident stays
                locked = stack.enter_context(locked_session(SessionKey(project_id, session_id)))
                locked.incidents.save()  # what overdue approvals changed of it
        incident = rows.select_for_update().first()
        open_verbs = LoopActivity.objects.filter(project_id=project_id, pk=verb.pk, finished_at=None)
        if incident is None or not open_verbs.select_for_update(no_key=True).exists():
            raise NotFound
        yield incident
        if locked is not None:
            locked.incidents.reload()


def _change(incident: Incident, verb: LoopActivity, action: str, note: str, **fields: Any) -> None:
    """Set fields, apply the rules, and keep the old values for undo. The alert and the audit are those of the verb."""
    old = {name: getattr(incident, name) for name in (*fields, *lifecycle.STATUS_FIELDS)}
    for name, value in fields.items():
        setattr(incident, name, value)
    lifecycle.settle(incident)
    changed = [name for name, value in old.items() if getattr(incident, name) != value]
    incident.save(update_fields=changed)
    IncidentActivity.objects.create(
        incident=incident, actor=verb.actor, action=action, note=note[:1000], loop_change=verb,
        before={name: plain(old[name]) for name in changed},
    )  # fmt: skip
    publish_after_commit(incident.project_id, Hint("incident", incident.public_id, action))


def close(verb: LoopActivity, public_id: str, note: str) -> bool:
    """Close an incident and its loop. If the loop continues in the session, that is a new incident."""
    with _locked(verb, public_id) as incident:
        if incident.status == IncidentStatus.DONE:
            return False
        now = timezone.now()
        _change(
            incident, verb, "done", note, status=IncidentStatus.DONE, done_at=now, ended_at=incident.ended_at or now,
            stays_open=False,
        )  # fmt: skip
        return True


def label(verb: LoopActivity, public_id: str, note: str, value: str, reason: str = "") -> bool:
    """Set whether an incident was a loop.

    Parameters
    ----------
    value
        ``true_loop``; ``false_alarm``, which also ends the incident; or empty to remove the label.
    reason
        Why it is not a loop, one of `LabelReason`; empty without a reason.
    """
    with _locked(verb, public_id) as incident:
        if (incident.label, incident.label_reason) == (value, reason):
            return False
        why = f": {LabelReason(reason).label.partition(':')[0].lower()}" if reason else ""
        note = "; ".join(filter(None, (f"{IncidentLabel(value).label.lower()}{why}", note)))
        fields: dict[str, Any] = {
            "label": value, "label_reason": reason, "labelled_at": timezone.now() if value else None,
        }  # fmt: skip
        if value == IncidentLabel.FALSE_ALARM:
            fields["stays_open"] = False
        _change(incident, verb, "labelled", note, **fields)
        return True


def undo(verb: LoopActivity, public_id: str) -> bool:
    """Undo what the verb that `verb` reverts changed of an incident, unless it was changed again since."""
    with _locked(verb, public_id) as incident:
        last = incident.activity.filter(action__in=_CHANGES).order_by("-at", "-id").first()
        if last is None or last.action == "undone" or last.loop_change_id != verb.reverts_id:
            return False
        fields = dict(last.before)
        for name in ("done_at", "ended_at", "labelled_at"):
            if fields.get(name):
                fields[name] = datetime.fromisoformat(fields[name])
        if "ended_at" in fields and fields["ended_at"] is None and _has_successor(incident):
            fields.pop("ended_at")
        _change(incident, verb, "undone", f"undid: {last.action}", **fields)
        return True


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
