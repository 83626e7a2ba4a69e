"""What people set up for alerts beside destinations: routes and silences.

How they are matched, and what follows, is `alerts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Any
from zoneinfo import available_timezones

from django.db import IntegrityError, transaction
from django.utils import timezone

from detection.engine.detectors import KINDS
from detection.models import AlertDestination, AlertRoute, AlertSilence, Project, Severity, Transition
from detection.services import audit
from detection.services.alerting import outbox
from detection.services.alerting.destinations import checked_name
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound

MAX_ROUTES, MAX_SILENCES = 100, 200
MAX_PATTERNS, MAX_PATTERN_LENGTH = 50, 128
MAX_REPEAT_HOURS = 720
MAX_SILENCE = timedelta(days=90)
_MATCHERS = ("kinds", "severities", "tools", "agents", "backends", "model_names")
_CLOSED: Mapping[str, Sequence[str]] = {
    "kinds": KINDS,
    "severities": Severity.values,
    "transitions": [value for value in Transition.values if value != Transition.STILL_OPEN],
    "group_by": outbox.GROUP_FIELDS,
}


def _list(field: str, values: object) -> list[str]:
    shown = "models" if field == "model_names" else field
    if not isinstance(values, list | tuple) or len(values) > MAX_PATTERNS:
        raise Invalid(f"{shown} must be a list of at most {MAX_PATTERNS}.", field=shown)
    cleaned = list(dict.fromkeys(str(value).strip() for value in values if str(value).strip()))
    if any(len(value) > MAX_PATTERN_LENGTH for value in cleaned):
        raise Invalid(f"A pattern has at most {MAX_PATTERN_LENGTH} characters.", field=shown)
    closed = _CLOSED.get(field)
    if closed is not None and set(cleaned) - set(closed):
        raise Invalid(f"{shown} must be some of {', '.join(closed)}.", field=shown)
    return cleaned


def _quiet(values: Mapping[str, Any]) -> tuple[time | None, time | None, str]:
    start, end, zone = values.get("quiet_from"), values.get("quiet_until"), values.get("quiet_zone") or "UTC"
    if (start is None) != (end is None):
        raise Invalid("Quiet hours need a beginning and an end.", field="quiet_from")
    if zone not in available_timezones():
        raise Invalid("The zone must be a name like Europe/Berlin.", field="quiet_zone")
    return start, end, zone


_ROUTE_DEFAULTS: Mapping[str, Any] = {
    "position": 0,
    "is_enabled": True,
    "goes_on": False,
    "includes_demo": False,
    "transitions": ("opened", "escalated", "ended", "approval.requested"),
    "group_by": ("session", "loop"),
    "group_wait_seconds": 10,
    "quiet_holds_critical": False,
    "repeat_hours": 0,
    **dict.fromkeys(_MATCHERS, ()),
}


@transaction.atomic
def save_route(
    project_id: int,
    actor: Actor,
    *,
    name: str,
    destinations: Sequence[str],
    public_id: str | None = None,
    **values: Any,
) -> AlertRoute:
    """Make a route, or replace one.

    Parameters
    ----------
    destinations
        Public ids; every one must be of this project.
    public_id
        None for a new route.
    values
        Columns of `AlertRoute`; what is absent gets its default.

    Raises
    ------
    Invalid
        For the field that is to blame.
    """
    values = {**_ROUTE_DEFAULTS, **values}
    if unknown := set(values) - {*_ROUTE_DEFAULTS, "quiet_from", "quiet_until", "quiet_zone"}:
        raise Invalid(f"There is no field {min(unknown)!r}.", field=min(unknown))
    targets = list(AlertDestination.objects.filter(project_id=project_id, public_id__in=destinations))
    if len(targets) != len(set(destinations)):
        raise Invalid("A destination is none of this project.", field="destinations")
    if not 0 <= int(values["group_wait_seconds"]) <= 3600:
        raise Invalid("The wait is 0 to 3,600 seconds.", field="group_wait_seconds")
    if not 0 <= int(values["position"]) <= 10_000:
        raise Invalid("The position is 0 to 10,000.", field="position")
    if not 0 <= int(values["repeat_hours"]) <= MAX_REPEAT_HOURS:
        raise Invalid(
            f"Tell again after 1 to {MAX_REPEAT_HOURS} hours, or 0 for never.", field="repeat_hours"
        )
    Project.objects.select_for_update(no_key=True).get(pk=project_id)
    row, before = AlertRoute(project_id=project_id), None
    if public_id is not None:
        row = _route(project_id, public_id)
        before = route_as_dict(row)
    elif AlertRoute.objects.filter(project_id=project_id).count() >= MAX_ROUTES:
        raise Conflict(f"A project has at most {MAX_ROUTES} routes.", code="too_many")
    row.name = checked_name(name)
    for field in (*_MATCHERS, "transitions", "group_by"):
        setattr(row, field, _list(field, values[field]))
    for field in ("position", "group_wait_seconds", "repeat_hours"):
        setattr(row, field, int(values[field]))
    for field in ("is_enabled", "goes_on", "includes_demo", "quiet_holds_critical"):
        setattr(row, field, bool(values[field]))
    row.quiet_from, row.quiet_until, row.quiet_zone = _quiet(values)
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        raise Conflict("There is a route of this name.", field="name", code="name_taken") from error
    row.destinations.set(targets)
    audit.record(
        actor,
        "route.change" if before else "route.create",
        row.public_id,
        project_id=project_id,
        before=before,
        after=route_as_dict(row),
    )
    return row


def _route(project_id: int, public_id: str) -> AlertRoute:
    row = AlertRoute.objects.select_for_update().filter(project_id=project_id, public_id=public_id).first()
    if row is None:
        raise NotFound("There is no such route in this project.")
    return row


def route_as_dict(row: AlertRoute) -> dict[str, Any]:
    """Return a route's columns as JSON can carry them."""
    names = (*(name for name in _ROUTE_DEFAULTS), "name", "quiet_zone")
    return {
        **{name: getattr(row, name) for name in names},
        "quiet_from": row.quiet_from.isoformat("minutes") if row.quiet_from else None,
        "quiet_until": row.quiet_until.isoformat("minutes") if row.quiet_until else None,
        "destinations": sorted(row.destinations.values_list("public_id", flat=True)),
    }


@transaction.atomic
def delete_route(project_id: int, public_id: str, actor: Actor) -> None:
    """Remove a route; messages that it has made are still sent."""
    row = _route(project_id, public_id)
    before = route_as_dict(row)
    row.delete()
    audit.record(actor, "route.delete", public_id, project_id=project_id, before=before)


@transaction.atomic
def create_silence(
    project_id: int,
    actor: Actor,
    *,
    reason: str,
    ends_at: datetime,
    starts_at: datetime | None = None,
    loop_id: str = "",
    **matchers: Any,
) -> AlertSilence:
    """Hold the messages about matching incidents back until a time.

    Parameters
    ----------
    ends_at
        In the future, at most 90 days ahead; nothing is silent for ever.
    starts_at
        None for now; a later time plans a maintenance.
    matchers
        ``kinds``, ``severities``, ``tools``, ``agents``, ``backends``, ``model_names``; none at all silences the project.
    """
    now = timezone.now()
    starts_at = max(starts_at or now, now)
    if not reason.strip() or len(reason) > 300:
        raise Invalid("Say why, in 1 to 300 characters.", field="reason")
    if not starts_at < ends_at <= now + MAX_SILENCE:
        raise Invalid("A silence ends after it starts, at most 90 days ahead.", field="ends_at")
    if unknown := set(matchers) - set(_MATCHERS):
        raise Invalid(f"There is no field {min(unknown)!r}.", field=min(unknown))
    if AlertSilence.objects.filter(project_id=project_id, ends_at__gt=now).count() >= MAX_SILENCES:
        raise Conflict(f"A project has at most {MAX_SILENCES} silences at once.", code="too_many")
    row = AlertSilence(
        project_id=project_id,
        reason=reason.strip(),
        starts_at=starts_at,
        ends_at=ends_at,
        loop_id=loop_id.strip()[:32],
        created_by=actor.name[:150],
    )
    for field in _MATCHERS:
        setattr(row, field, _list(field, matchers.get(field, ())))
    row.save()
    audit.record(actor, "silence.create", row.public_id, project_id=project_id, after=silence_as_dict(row))
    return row


def silence_as_dict(row: AlertSilence) -> dict[str, Any]:
    """Return a silence's columns as JSON can carry them."""
    return {
        **{name: getattr(row, name) for name in (*_MATCHERS, "reason", "loop_id", "created_by")},
        "starts_at": row.starts_at.isoformat(),
        "ends_at": row.ends_at.isoformat(),
    }


@transaction.atomic
def end_silence(project_id: int, public_id: str, actor: Actor) -> AlertSilence:
    """End a silence now; what it held back stays in its list, and what is open still and was never told is told."""
    row = AlertSilence.objects.select_for_update().filter(project_id=project_id, public_id=public_id).first()
    if row is None:
        raise NotFound("There is no such silence in this project.")
    now = timezone.now()
    if row.ends_at > now:
        before = silence_as_dict(row)
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
    return row
