"""Routes of alerts: create, update, delete. How they match is in `routing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import time
from typing import Any
from zoneinfo import available_timezones

from django.db import IntegrityError, transaction

from detection.models import AlertDestination, AlertEventType, AlertRoute, Project
from detection.services import audit
from detection.services.alerting import routing
from detection.services.alerting.destinations import checked_name
from detection.services.alerting.matchers import MATCHERS, check_list
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, found
from detection.services.versions import require_version, version_of

MAX_ROUTES = 100
MAX_GROUP_WAIT_SECONDS = 3600
MAX_POSITION = 10_000
MAX_REPEAT_INTERVAL_HOURS = 720
EVENT_TYPES = tuple(value for value in AlertEventType.values if value != AlertEventType.STILL_OPEN)
_DEFAULTS: Mapping[str, Any] = {
    "position": 0,
    "is_enabled": True,
    "continue_matching": False,
    "includes_demo": False,
    "event_types": ("opened", "escalated", "ended", "approval.requested"),
    "group_by": ("session", "loop"),
    "group_wait_seconds": 10,
    "quiet_delays_critical": False,
    "repeat_interval_hours": 0,
    **dict.fromkeys(MATCHERS, ()),
}
_RANGES: Mapping[str, int] = {
    "position": MAX_POSITION,
    "group_wait_seconds": MAX_GROUP_WAIT_SECONDS,
    "repeat_interval_hours": MAX_REPEAT_INTERVAL_HOURS,
}
_FLAGS = ("is_enabled", "continue_matching", "includes_demo", "quiet_delays_critical")


@transaction.atomic
def save_route(
    project_id: int,
    actor: Actor,
    *,
    name: str,
    destinations: Sequence[str],
    public_id: str | None = None,
    version: str | None = None,
    **values: Any,
) -> AlertRoute:
    """Create a route, or replace all fields of one.

    Parameters
    ----------
    destinations
        Public ids of destinations in this project, at least one.
    public_id
        None for a new route.
    version
        `route_version` of what the person has seen; None checks nothing.
    values
        Columns of `AlertRoute`; missing ones get their defaults.

    Raises
    ------
    Invalid
        For the field at fault.
    NotFound
        If `public_id` is not a route of this project.
    Conflict
        ``too_many`` or ``name_taken``; ``changed_meanwhile`` with the stored values.
    """
    targets = checked_destinations(project_id, destinations)
    Project.objects.select_for_update(no_key=True).get(pk=project_id)
    row, before = AlertRoute(project_id=project_id), None
    if public_id is not None:
        row = _locked_route(project_id, public_id)
        before = route_as_dict(row)
        require_version(version, before)
    elif AlertRoute.objects.filter(project_id=project_id).count() >= MAX_ROUTES:
        raise Conflict(f"A project can have at most {MAX_ROUTES} routes.", code="too_many")
    row.name = checked_name(name)
    set_values(row, values)
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        raise Conflict("A route with this name already exists.", field="name", code="name_taken") from error
    row.send_to(targets)
    audit.record(
        actor,
        "route.change" if before else "route.create",
        row.public_id,
        project_id=project_id,
        before=before,
        after=route_as_dict(row),
    )
    return row


def checked_destinations(project_id: int, public_ids: Sequence[str]) -> list[AlertDestination]:
    """Return the destinations of a route; `Invalid` if there is none, or an unknown one."""
    if not public_ids:
        raise Invalid("`destinations` must have at least one id.", field="destinations")
    found = list(AlertDestination.objects.filter(project_id=project_id, public_id__in=public_ids))
    if len(found) != len(set(public_ids)):
        raise Invalid(
            "`destinations` must contain ids of destinations in this project.", field="destinations"
        )
    return found


def set_values(row: AlertRoute, values: Mapping[str, Any]) -> None:
    """Set the columns of a route except its name; missing ones get their defaults. Raises `Invalid`."""
    values = {**_DEFAULTS, **values}
    if unknown := set(values) - {*_DEFAULTS, "quiet_from", "quiet_until", "quiet_zone"}:
        raise Invalid(f"`{min(unknown)}` is not a field of a route.", field=min(unknown))
    for field, maximum in _RANGES.items():
        if not 0 <= int(values[field]) <= maximum:
            raise Invalid(f"`{field}` must be between 0 and {maximum:,}.", field=field)
        setattr(row, field, int(values[field]))
    for field in MATCHERS:
        setattr(row, field, check_list(field, values[field]))
    row.event_types = check_list("event_types", values["event_types"], EVENT_TYPES)
    row.group_by = check_list("group_by", values["group_by"], routing.GROUP_FIELDS)
    for field in _FLAGS:
        setattr(row, field, bool(values[field]))
    row.quiet_from, row.quiet_until, row.quiet_zone = _quiet_hours(values)


def _quiet_hours(values: Mapping[str, Any]) -> tuple[time | None, time | None, str]:
    start, end, zone = values.get("quiet_from"), values.get("quiet_until"), values.get("quiet_zone") or "UTC"
    if (start is None) != (end is None):
        raise Invalid("`quiet_from` and `quiet_until` must be set together.", field="quiet_from")
    if zone not in available_timezones():
        raise Invalid(
            "`quiet_zone` must be the name of a time zone, as in Europe/Berlin.", field="quiet_zone"
        )
    return start, end, zone


def _locked_route(project_id: int, public_id: str) -> AlertRoute:
    rows = AlertRoute.objects.select_for_update().filter(project_id=project_id, public_id=public_id)
    return found(rows.first())


def route_as_dict(row: AlertRoute) -> dict[str, object]:
    """Return the columns of a route as JSON values."""
    return {
        **{name: getattr(row, name) for name in (*_DEFAULTS, "name", "quiet_zone")},
        "quiet_from": row.quiet_from.isoformat("minutes") if row.quiet_from else None,
        "quiet_until": row.quiet_until.isoformat("minutes") if row.quiet_until else None,
        "destinations": sorted(one.public_id for one in row.destinations.filter(project_id=row.project_id)),
    }


def route_version(row: AlertRoute) -> str:
    """Return the version of a route as a form shows it; empty for a new one."""
    return version_of(route_as_dict(row)) if row.pk else ""


@transaction.atomic
def delete_route(project_id: int, public_id: str, actor: Actor, *, version: str | None = None) -> None:
    """Delete a route. Notifications that it created are still sent.

    Raises
    ------
    ChangedMeanwhile
        When its version is no longer `version`; see `save_route`.
    """
    row = _locked_route(project_id, public_id)
    before = route_as_dict(row)
    require_version(version, before)
    row.delete()
    audit.record(actor, "route.delete", public_id, project_id=project_id, before=before)
