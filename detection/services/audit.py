"""Writes audit entries, in the transaction of the change that they record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from detection.models import AuditEntry, IncidentActivity


@dataclass(frozen=True, slots=True)
class Actor:
    """The author of a change: a person, an API key, an in-chat command or the system.

    Attributes
    ----------
    name
        A user name, ``key:<public id>``, ``command``, ``command line`` or ``system``.
    user_id
        Primary key of the user, for a person.
    bulk_action_id
        Primary key of the action on many loops that the change is a part of.
    """

    name: str
    user_id: int | None = None
    address: str | None = None
    request_id: str = ""
    bulk_action_id: int | None = None


SYSTEM = Actor("system")
KEY_PREFIX = "key:"
_NOBODY_BY_NAME = frozenset({"", "command", "command line", "system"})


def shown_to_agents(name: str) -> str:
    """Return the author of a change as agents may read it: people have names, ids of keys are not for agents."""
    return "an operator" if name.startswith(KEY_PREFIX) or name in _NOBODY_BY_NAME else name


_STATES = frozenset({"opened", "ended"})


def record_incidents(activity: Sequence[IncidentActivity]) -> None:
    """Append the changes of incidents' states by detection; other actions are in the activity of the incident only."""
    AuditEntry.objects.bulk_create(
        AuditEntry(
            project_id=step.incident.project_id,
            actor=step.actor,
            action=f"incident.{step.action}",
            subject=step.incident.public_id,
            after={"note": step.note} if step.note else None,
        )
        for step in activity
        if step.action in _STATES
    )


def noted(at: datetime) -> str:
    """Return a time as notes and changes of settings spell it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def record(
    actor: Actor,
    action: str,
    subject: str,
    *,
    project_id: int | None,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> None:
    """Append an entry; must run inside the transaction of the change."""
    AuditEntry.objects.create(
        project_id=project_id,
        actor=actor.name[:150],
        action=action,
        subject=subject[:300],
        before=before,
        after=after,
        address=actor.address,
        request_id=actor.request_id[:64],
    )
