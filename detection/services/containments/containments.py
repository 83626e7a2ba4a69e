"""Create and lift containments. Each change raises the version of its projects, which every call reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import F, Q, QuerySet

from detection import clock
from detection.models import (
    AlertEventType,
    ApiKey,
    Containment,
    ContainmentReaction,
    ContainmentScope,
    GatewayToken,
    Project,
    Session,
)
from detection.models.containments import OF_CALLS, WITHOUT_VALUE
from detection.selectors.containments import Reached, count_reached, in_force, reached_sessions
from detection.services import audit
from detection.services.alerting import outbox
from detection.services.audit import Actor
from detection.services.containments import settling
from detection.services.errors import Conflict, Invalid, found
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

MAX_REASON_CHARACTERS: Final = 300
MAX_UNTIL: Final = timedelta(days=365)
"""As of temporary settings."""
MAX_SESSIONS: Final = 500
"""Ids of sessions in the alert event of a containment: with the longest names they are 128 KB."""
MAX_ENDED: Final = 100
_LONGEST: Final = {
    ContainmentScope.AGENT: 128, ContainmentScope.AGENT_TOOL: 128, ContainmentScope.TOOL: 128,
    ContainmentScope.MODEL: 200, ContainmentScope.TAG: 64, ContainmentScope.KEY: 24,
}  # fmt: skip
_KEY_PREFIXES: Final = ("lgw_", "lg_")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person or program asks to contain.

    Attributes
    ----------
    value
        Name in the scope: an agent, model or tag; a tool, in which `*` stands for any characters; the readable part of
        a key or token; of a family, its top session. Empty for the project and the server.
    tool
        For the scope ``agent_tool``.
    until
        When it ends by itself, at most `MAX_UNTIL` ahead.
    include_new
        Whether it covers sessions that start later.
    """

    scope: str
    value: str
    reaction: str
    tool: str = ""
    reason: str = ""
    until: datetime | None = None
    include_new: bool = True


def preview(project_id: int | None, wanted: Wanted) -> Containment:
    """Return a containment as `contain` would create it, with what it reaches; nothing is stored.

    Raises
    ------
    Invalid
        See `contain`.
    """
    row = Containment(
        project_id=project_id,
        scope=_choice(ContainmentScope, wanted.scope, "scope"),
        value=wanted.value.strip(),
        tool=wanted.tool.strip(),
        reaction=_choice(ContainmentReaction, wanted.reaction, "reaction"),
        reason=_text(wanted.reason.strip(), "reason", MAX_REASON_CHARACTERS),
        until=wanted.until,
        include_new=wanted.include_new,
        created_at=clock.now(),
    )
    if (row.scope == ContainmentScope.SERVER) != (project_id is None):
        raise Invalid(
            "Only staff can contain the server, in the console or with `manage.py contain`.",
            field="scope",
            code="staff_only",
        )
    _check_value(row)
    _check_until(wanted.until)
    reached = reach(row)
    row.can_stop, row.can_block, row.watch_only = reached.can_stop, reached.can_block, reached.watch_only
    return row


def contain(project_id: int | None, wanted: Wanted, actor: Actor) -> Containment:
    """Stop, hold or block everything of a scope, until the containment is lifted.

    In force for each call that is committed after this, in every process.

    Parameters
    ----------
    project_id
        None for the server.

    Returns
    -------
    Containment
        With what it reached when it was created. Sessions and held calls follow for `settling.SETTLE_SECONDS`, and in
        the background after that; their calls are blocked or stopped as soon as it is committed.

    Raises
    ------
    Invalid
        ``invalid_value``, ``missing``, ``too_long``, ``unknown_key``, ``out_of_range`` or ``staff_only``.
    """
    row = preview(project_id, wanted)
    row.created_by = actor.name[:150]
    with transaction.atomic():
        projects = _raise_versions(project_id)
        # Under the lock of the projects: a session is older than the containment, or reads it with its project.
        row.created_at = clock.now()
        row.save(force_insert=True)
        audit.record(
            actor,
            "containment.create",
            row.public_id,
            project_id=project_id,
            after={
                "scope": row.scope, "value": row.value, "tool": row.tool, "reaction": row.reaction,
                "reason": row.reason, "until": row.until and audit.noted(row.until),
                "include_new": row.include_new,
                "can_stop": row.can_stop, "can_block": row.can_block, "watch_only": row.watch_only,
            },
        )  # fmt: skip
        _announce(projects, row, AlertEventType.CONTAINMENT_CREATED, actor.name)
    settling.settle(projects)
    return row


def lift(project_id: int | None, public_id: str, actor: Actor) -> Containment:
    """Lift a containment: the calls of what it covered are judged again, and what it holds may run.

    Parameters
    ----------
    project_id
        None for one of the server.

    Raises
    ------
    NotFound
        If the project, or the server, has no such containment.
    Conflict
        ``not_in_force`` when it was lifted or has ended.
    """
    with transaction.atomic():
        projects = _raise_versions(project_id)
        row = found(Containment.objects.filter(_of(project_id), public_id=public_id).first())
        if not in_force(clock.now()).filter(pk=row.pk).exists():
            raise Conflict("This containment is no longer in force.", code="not_in_force")
        row.lifted_at, row.lifted_by = clock.now(), actor.name[:150]
        row.save(update_fields=["lifted_at", "lifted_by"])
        audit.record(actor, "containment.lift", row.public_id, project_id=project_id)
        _announce(projects, row, AlertEventType.CONTAINMENT_LIFTED, actor.name)
    settling.settle(projects)
    return row


def note_ended() -> int:
    """Record the containments whose time is over, each once; returns how many. Used by the sweep."""
    with transaction.atomic():
        now = clock.now()
        over = Containment.objects.filter(until__lte=now, lifted_at=None, end_noted_at=None)
        rows = [*over.select_for_update(skip_locked=True).order_by("pk")[:MAX_ENDED]]
        for row in rows:
            row.end_noted_at = now
            row.save(update_fields=["end_noted_at"])
            _announce(_projects_of(row.project_id), row, AlertEventType.CONTAINMENT_ENDED, "system")
    return len(rows)


def reach(row: Containment) -> Reached:
    """Return how many sessions a containment reaches now."""
    return count_reached(_reached(row, _projects_of(row.project_id)))


def _reached(row: Containment, projects: list[int]) -> QuerySet[Session]:
    sessions = reached_sessions(projects, row.scope, row.value, row.tool, clock.now())
    return sessions if row.include_new else sessions.filter(started_at__lte=row.created_at)


def _of(project_id: int | None) -> Q:
    return Q(project=None) if project_id is None else Q(project_id=project_id)


def _projects_of(project_id: int | None) -> list[int]:
    if project_id is not None:
        return [project_id]
    return [*Project.objects.order_by("pk").values_list("pk", flat=True)]


def _raise_versions(project_id: int | None) -> list[int]:
    """Lock the projects in order and raise their versions; returns their ids."""
    rows = Project.objects.all() if project_id is None else Project.objects.filter(pk=project_id)
    projects = [*rows.order_by("pk").select_for_update(no_key=True).values_list("pk", flat=True)]
    rows.update(policy_version=F("policy_version") + 1)
    return projects


def _announce(projects: list[int], row: Containment, change: AlertEventType, actor: str) -> None:
    """Tell open pages and alert routes; a new containment with the sessions that it reaches."""
    sessions: dict[int, list[str]] = {}
    for project_id in projects:
        publish_after_commit(project_id, Hint("containment", row.public_id, change.value.partition(".")[2]))
        sessions[project_id] = []
        if change == AlertEventType.CONTAINMENT_CREATED:
            reached = _reached(row, [project_id]).order_by("-last_event_at")
            sessions[project_id] = [*reached.values_list("external_id", flat=True)[:MAX_SESSIONS]]
    outbox.record_containment(change, row, actor, sessions)


def _choice(kind: type[ContainmentScope] | type[ContainmentReaction], value: str, field: str) -> str:
    if value not in kind.values:
        raise Invalid(
            f"`{field}` must be one of {', '.join(kind.values)}.", field=field, code="invalid_value"
        )
    return value


def _text(value: str, field: str, longest: int) -> str:
    if len(value) > longest:
        raise Invalid(f"`{field}` must have at most {longest} characters.", field=field, code="too_long")
    if not value.isprintable():
        raise Invalid(
            f"`{field}` must contain printable characters only.", field=field, code="invalid_characters"
        )
    return value


def _check_value(row: Containment) -> None:
    needs_tool = row.scope == ContainmentScope.AGENT_TOOL
    for field, is_needed in (("value", row.scope not in WITHOUT_VALUE), ("tool", needs_tool)):
        given = getattr(row, field)
        if is_needed and not given:
            raise Invalid(f"`{field}` is required for this scope.", field=field, code="missing")
        if given and not is_needed:
            raise Invalid(f"`{field}` must be empty for this scope.", field=field, code="invalid_value")
    _text(row.value, "value", _LONGEST.get(ContainmentScope(row.scope), 256))
    _text(row.tool, "tool", _LONGEST[ContainmentScope.TOOL])
    if row.scope in OF_CALLS and not (row.tool or row.value).strip("*"):
        field = "tool" if needs_tool else "value"
        raise Invalid(f"`{field}` must name a tool, not all of them.", field=field, code="invalid_value")
    if row.scope == ContainmentScope.KEY:
        for prefix in _KEY_PREFIXES:
            row.value = row.value.removeprefix(prefix)
        keys = ApiKey.objects.filter(project=row.project, public_id=row.value)
        if not (
            keys.exists() or GatewayToken.objects.filter(project=row.project, public_id=row.value).exists()
        ):
            raise Invalid(
                "`value` must be a key or token of this project.", field="value", code="unknown_key"
            )


def _check_until(until: datetime | None) -> None:
    now = clock.now()
    if until is not None and (until.tzinfo is None or not now < until <= now + MAX_UNTIL):
        raise Invalid(
            f"`until` must be in the future, at most {MAX_UNTIL.days} days ahead, with a time zone.",
            field="until",
            code="out_of_range",
        )
