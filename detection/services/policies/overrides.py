"""Change stored overrides and tool rules; each change raises the policy version of the projects it applies to.

A person who weakens detection gives a reason. For a program it is optional; the audit then says that none was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from detection.engine.fields import FIELDS
from detection.engine.policy import PolicyError, ScopedValues, ToolRule, resolve, stored_values, validate
from detection.engine.scopes import MAX_NAME_CHARACTERS, SERVER, STORED_KINDS, Scope
from detection.engine.tool_classes import shipped_traits
from detection.engine.weakening import weakened
from detection.models import AuditEntry, Override, Project, ToolOverride
from detection.selectors.policies import load_overrides, tool_rule
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.policies.undo import (
    EXPIRES_AT,
    RULE_FIELDS,
    settings_of,
    stored_settings,
    without_change,
)
from detection.services.versions import require_version, version_of
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

NO_NOTE, RESTORED, EXPIRED = "no note given", "restored", "expired"
MAX_EXPIRY = timedelta(days=365)
MAX_EXPIRED = 500
MAX_NOTE_CHARACTERS = 300
MAX_TOOL_NAMES = 50
_NOT_SETTINGS = (*MAX_NAME_CHARACTERS, "scope", "tool_class")
_WEAKER_CLASSES = ("", "poll", "wait", "exempt")
"""Classes in order of decreasing strictness; other classes differ in what they compare, not in strictness."""


def checked(scope: Scope, values: dict[str, Any]) -> dict[str, Any]:
    """Return an override's values as the engine validates them.

    Raises
    ------
    Invalid
        `invalid_setting`, naming every field that is wrong.
    """
    try:
        return validate(scope, values)
    except PolicyError as error:
        raise invalid_setting(error) from error


def invalid_setting(error: PolicyError) -> Invalid:
    """Turn the engine's error into one of the services; `invalid_value` for an unknown setting."""
    code = "invalid_value" if error.field in _NOT_SETTINGS else "invalid_setting"
    errors = {one.field: f"{one.message[:1].upper()}{one.message[1:]}." for one in (error, *error.others)}
    return Invalid(str(error), field=error.field, code=code, errors=errors)


@transaction.atomic
def save_override(
    project_id: int | None,
    scope: Scope,
    values: dict[str, Any],
    actor: Actor,
    note: str = "",
    expires_at: datetime | None = None,
    *,
    version: str | None = None,
) -> Override | None:
    """Replace the override of a scope.

    Parameters
    ----------
    project_id
        None for the server, whose override applies to every project.
    scope
        The server, the project, or an agent, backend or model within it.
    values
        The whole override; a setting that is absent or None is inherited. An empty override is deleted.
    note
        Reason, at most `MAX_NOTE_CHARACTERS`. Required of a person who weakens detection.
    expires_at
        When what is stored now takes effect again, at most `MAX_EXPIRY` ahead. A temporary override that is replaced by
        another one ends with what was stored before both.
    version
        `override_version` of what the person has seen; None checks nothing.

    Returns
    -------
    Override or None
        None when the override is empty.

    Raises
    ------
    Invalid
        `invalid_setting` for a name or value that is not allowed, `note_needed` without a required reason.
    ChangedMeanwhile
        When it was changed since.
    """
    check_expiry(expires_at)
    if scope.kind not in STORED_KINDS or (project_id is None) != (scope == SERVER):
        raise Invalid("Only the server's override is without a project.", field="scope")
    values = checked(scope, values)
    _lock(project_id)
    row = _stored(project_id, scope) or Override(
        project_id=project_id, agent=scope.agent, backend=scope.backend, model=scope.model
    )
    before = stored_values(row.values)
    require_version(version, _seen(row))
    weaker = _weakened(load_overrides(project_id).below(scope), scope, before, values)
    audit_note = _audit_note(weaker, note, actor)
    expiry_before = row.expires_at
    permanent = row.after_expiry if expiry_before else {"values": before} if before else None
    row.values, row.note, row.updated_by_id = values, note[:MAX_NOTE_CHARACTERS], actor.user_id
    row.expires_at, row.after_expiry = expires_at, permanent if expires_at else None
    is_stored = bool(values) or expires_at is not None
    if is_stored:
        row.save()
    elif row.pk:
        row.delete()
    if values != before or expires_at != expiry_before:
        audit.record(
            actor,
            "policy.save",
            str(scope),
            project_id=project_id,
            before=_with_expiry(before, expiry_before),
            after={**_with_expiry(values, expires_at), "note": audit_note},
        )
        _raise_version(project_id)
    return row if is_stored else None


def override_version(row: Override | None) -> str:
    """Return the version of an override as a form shows it."""
    return version_of(_seen(row))


def _seen(row: Override | None) -> dict[str, Any]:
    """Return the values of an override that a form shows; empty if it is not stored."""
    if row is None or not row.pk:
        return {}
    return _with_expiry({**row.values, "note": row.note}, row.expires_at)


def delete_override(
    project_id: int | None, scope: Scope, actor: Actor, note: str = "", *, version: str | None = None
) -> None:
    """Delete the override of a scope, which inherits everything again; that may weaken detection.

    Raises
    ------
    NotFound
        When the scope has none.
    ChangedMeanwhile
        When its version is no longer `version`; see `save_override`.
    """
    if _stored(project_id, scope) is None:
        raise NotFound("Override not found in this project.")
    save_override(project_id, scope, {}, actor, note, version=version)


@transaction.atomic
def save_tool_rule(
    project_id: int,
    pattern: str,
    *,
    actor: Actor,
    tool_class: str = "",
    ignore_arguments: Sequence[str] = (),
    volatile_result_fields: Sequence[str] = (),
    values: dict[str, Any] | None = None,
    exempt: bool = False,
    note: str = "",
    expires_at: datetime | None = None,
    version: str | None = None,
) -> ToolOverride:
    """Replace the rule for the tools that match `pattern`; see `save_override` for the other parameters and errors."""
    check_expiry(expires_at)
    values = checked(_tool_scope(pattern), values or {})
    _lock(project_id)
    row = ToolOverride.objects.filter(project_id=project_id, pattern=pattern).first() or ToolOverride(
        project_id=project_id, pattern=pattern
    )
    was_stored, before, rule_before = row.pk is not None, _as_dict(row), tool_rule(row)
    require_version(version, _with_expiry(before, row.expires_at) if was_stored else {})
    expiry_before = row.expires_at
    permanent = row.after_expiry if expiry_before else before if was_stored else None
    row.expires_at, row.after_expiry = expires_at, permanent if expires_at else None
    row.tool_class, row.exempt, row.values = tool_class, exempt, values
    row.ignore_arguments = checked_names("ignore_arguments", ignore_arguments)
    row.volatile_result_fields = checked_names("volatile_result_fields", volatile_result_fields)
    try:
        weaker = _weakened_by_rule(project_id, rule_before, tool_rule(row))
    except PolicyError as error:
        raise invalid_setting(error) from error
    audit_note = _audit_note(weaker, note, actor)
    row.note, row.updated_by_id = note[:MAX_NOTE_CHARACTERS], actor.user_id
    row.save()
    audit.record(
        actor,
        "policy.tool_rule",
        str(row.scope),
        project_id=project_id,
        before=_with_expiry(before, expiry_before) if was_stored else None,
        after={**_with_expiry(_as_dict(row), expires_at), "note": audit_note},
    )
    _raise_version(project_id)
    return row


def tool_rule_version(row: ToolOverride | None) -> str:
    """Return the version of a tool rule as a form shows it."""
    return version_of(_with_expiry(_as_dict(row), row.expires_at) if row is not None and row.pk else {})


@transaction.atomic
def delete_tool_rule(
    project_id: int, pattern: str, actor: Actor, note: str = "", *, version: str | None = None
) -> None:
    """Delete a rule; that may weaken detection.

    Raises
    ------
    NotFound
        When the project has no such rule.
    ChangedMeanwhile
        When its version is no longer `version`; see `save_override`.
    """
    _lock(project_id)
    row = ToolOverride.objects.filter(project_id=project_id, pattern=pattern).first()
    if row is None:
        raise NotFound("Tool rule not found in this project.")
    require_version(version, _with_expiry(_as_dict(row), row.expires_at))
    audit_note = _audit_note(_weakened_by_rule(project_id, tool_rule(row), ToolRule(pattern)), note, actor)
    row.delete()
    audit.record(
        actor,
        "policy.tool_rule",
        str(row.scope),
        project_id=project_id,
        before=_with_expiry(_as_dict(row), row.expires_at),
        after={"note": audit_note} if audit_note else None,
    )
    _raise_version(project_id)


def history(project_id: int, limit: int = 100) -> list[AuditEntry]:
    """List the changes of this project's overrides and of the server's, newest first."""
    rows = AuditEntry.objects.filter(
        Q(project_id=project_id) | Q(project_id=None), action__startswith="policy."
    )
    return list(rows[:limit])


@transaction.atomic
def restore(project_id: int, entry_id: int, actor: Actor) -> None:
    """Restore an override or tool rule to its state before a change.

    Parameters
    ----------
    entry_id
        The audit entry of the change.

    Raises
    ------
    NotFound
        When it is no change of this project's settings.
    """
    entry = _change(project_id, entry_id)
    scope, before = Scope.parse(entry.subject), dict(entry.before or {})
    expires_at = None
    if before.get("expires_at"):
        expires_at = datetime.fromisoformat(before.pop("expires_at"))
        _require_future(expires_at)
    if scope.kind != "tool":
        save_override(project_id, scope, before, actor, RESTORED, expires_at)
    elif entry.before is None:
        delete_tool_rule(project_id, scope.pattern, actor, RESTORED)
    else:
        before["note"] = before.get("note") or RESTORED
        save_tool_rule(project_id, scope.pattern, actor=actor, expires_at=expires_at, **before)
    if expires_at is not None:
        _end_as_before(project_id, scope, entry)


@transaction.atomic
def undo(project_id: int, entry_id: int, actor: Actor) -> bool:
    """Restore what a change has set in an override or tool rule; what was set since stays.

    Parameters
    ----------
    entry_id
        The audit entry of the change.

    Returns
    -------
    bool
        False when all that it has set was changed since; nothing is written then.

    Raises
    ------
    NotFound
        When it is no change of this project's settings.
    Conflict
        ``expired`` when what was stored before the change was temporary, and its time is over.
    """
    entry = _change(project_id, entry_id)
    scope = Scope.parse(entry.subject)
    _lock(project_id)
    stored = stored_settings(_row(project_id, scope))
    restored = without_change(entry, stored)
    if restored is None:
        return False
    _expire(project_id, scope)
    if restored == stored:
        return True
    row = _row(project_id, scope)
    expires_at = restored.pop(EXPIRES_AT, None)
    if expires_at is not None and expires_at == stored.get(EXPIRES_AT) and row is not None:
        later = settings_of(row.after_expiry)
        if not (entry.after or {}).get(EXPIRES_AT):
            # A later temporary change ends with what the permanent one has set.
            later = _forget(entry, row)
        if restored == later and EXPIRES_AT not in settings_of(entry.before):
            expires_at = None
    elif expires_at is not None:
        _require_future(expires_at)
    values = {name: value for name, value in restored.items() if name in FIELDS}
    if scope.kind != "tool":
        save_override(project_id, scope, values, actor, RESTORED, expires_at)
    elif not restored and expires_at is None and entry.before is None:
        delete_tool_rule(project_id, scope.pattern, actor, RESTORED)
    else:
        facts = {name: restored[name] for name in RULE_FIELDS if name in restored}
        note = _note_without(entry, row)
        save_tool_rule(
            project_id, scope.pattern, actor=actor, values=values, note=note, expires_at=expires_at, **facts
        )
    if expires_at is not None and EXPIRES_AT not in stored:
        _end_as_before(project_id, scope, entry)
    return True


def _end_as_before(project_id: int, scope: Scope, entry: AuditEntry) -> None:
    """Let a row that is temporary again end with what was stored before it, not with the change of the entry."""
    row = _row(project_id, scope)
    if row is not None:
        row.after_expiry = _permanent_before(project_id, entry)
        row.save(update_fields=["after_expiry"])


def _forget(entry: AuditEntry, row: Override | ToolOverride) -> dict[str, Any]:
    """Restore what a change has set in what a temporary row reverts to; returns the settings of that."""
    later = settings_of(row.after_expiry)
    restored = without_change(entry, later)
    if row.after_expiry is None or restored is None:
        return later
    restored.pop(EXPIRES_AT, None)
    values = {name: value for name, value in restored.items() if name in FIELDS}
    document = {**row.after_expiry, "values": values}
    if isinstance(row, ToolOverride):
        none = ToolOverride()
        document.update({name: restored.get(name, getattr(none, name)) for name in RULE_FIELDS})
    is_empty = not restored and not entry.before
    type(row).objects.filter(pk=row.pk).update(after_expiry=None if is_empty else document)
    return restored


def _permanent_before(project_id: int, entry: AuditEntry) -> dict[str, Any] | None:
    """Return the permanent settings before a change of temporary ones, in the form of `after_expiry`."""
    earlier = AuditEntry.objects.filter(
        project_id=project_id, action=entry.action, subject=entry.subject, pk__lte=entry.pk
    )
    first = earlier.exclude(before__has_key=EXPIRES_AT).order_by("-pk").first()
    if first is None or not first.before:
        return None
    return first.before if Scope.parse(entry.subject).kind == "tool" else {"values": first.before}


def _note_without(entry: AuditEntry, row: Override | ToolOverride | None) -> str:
    """Return the note of a rule without a change: the earlier one, or that of a later change."""
    if row is not None and row.note != (entry.after or {}).get("note"):
        return row.note or RESTORED
    return str((entry.before or {}).get("note") or RESTORED)


def _change(project_id: int, entry_id: int) -> AuditEntry:
    entry = AuditEntry.objects.filter(
        pk=entry_id, project_id=project_id, action__startswith="policy."
    ).first()
    if entry is None:
        raise NotFound("Change not found in this project.")
    return entry


def _require_future(expires_at: datetime) -> None:
    if expires_at <= timezone.now():
        raise Conflict("What was stored before this change has expired.", code="expired")


def expire_due() -> int:
    """Store the values that expired overrides and tool rules revert to; returns how many.

    Used by the sweeper. Expired rows have no effect whether or not this runs; this writes the history and frees the
    row.
    """
    now, total = timezone.now(), 0
    for project_id, scope in [
        *((row.project_id, row.scope) for row in Override.objects.filter(expires_at__lte=now)[:MAX_EXPIRED]),
        *(
            (row.project_id, row.scope)
            for row in ToolOverride.objects.filter(expires_at__lte=now)[:MAX_EXPIRED]
        ),
    ]:
        total += _expire(project_id, scope)
    return total


@transaction.atomic
def _expire(project_id: int | None, scope: Scope) -> bool:
    _lock(project_id)
    is_rule = scope.kind == "tool"
    row = _row(project_id, scope)
    if row is None or row.expires_at is None or row.expires_at > timezone.now():
        return False
    after = row.after_expiry
    if not is_rule:
        save_override(project_id, scope, (after or {}).get("values", {}), audit.SYSTEM, EXPIRED)
    elif after is None:
        delete_tool_rule(cast("int", project_id), scope.pattern, audit.SYSTEM, EXPIRED)
    else:
        rule = {**after, "note": EXPIRED}
        save_tool_rule(cast("int", project_id), scope.pattern, actor=audit.SYSTEM, **rule)
    return True


def check_expiry(expires_at: datetime | None) -> None:
    """Check a time of expiry; `Invalid` for one that is past, too far ahead or without a time zone."""
    if expires_at is None:
        return
    now = timezone.now()
    if expires_at.tzinfo is None or not now < expires_at <= now + MAX_EXPIRY:
        raise Invalid(
            f"`expires_at` must be in the future, at most {MAX_EXPIRY.days} days ahead, with a time zone.",
            field="expires_at",
            code="out_of_range",
        )


def _with_expiry(document: dict[str, Any], expires_at: datetime | None) -> dict[str, Any]:
    return {**document, "expires_at": expires_at.isoformat()} if expires_at else document


def _row(project_id: int | None, scope: Scope) -> Override | ToolOverride | None:
    if scope.kind != "tool":
        return _stored(project_id, scope)
    return ToolOverride.objects.filter(project_id=project_id or 0, pattern=scope.pattern).first()


def _stored(project_id: int | None, scope: Scope) -> Override | None:
    return Override.objects.filter(
        Q(project=None) if scope == SERVER else Q(project_id=project_id),
        agent=scope.agent,
        backend=scope.backend,
        model=scope.model,
    ).first()


def _lock(project_id: int | None) -> None:
    """Serialize changes of a project's overrides; calls do not wait for them."""
    rows = Project.objects.all() if project_id is None else Project.objects.filter(pk=project_id)
    list(rows.order_by("pk").select_for_update(no_key=True).values_list("pk"))


def _raise_version(project_id: int | None) -> None:
    """Make every process load the overrides again at the next call."""
    projects = Project.objects.all() if project_id is None else Project.objects.filter(pk=project_id)
    projects.update(policy_version=F("policy_version") + 1)
    if project_id is not None:
        publish_after_commit(project_id, Hint("policy"))


def _tool_scope(pattern: str) -> Scope:
    try:
        return Scope("tool", pattern=pattern)
    except PolicyError as error:
        raise invalid_setting(error) from error


def checked_names(field: str, names: Iterable[Any]) -> list[str]:
    """Return the names of arguments or result fields in a tool rule; `Invalid` for too many, or one that is none."""
    names = list(names)
    if len(names) > MAX_TOOL_NAMES or not all(
        isinstance(name, str) and 1 <= len(name) <= 256 for name in names
    ):
        raise Invalid(
            f"`{field}` must be a list of at most {MAX_TOOL_NAMES} names of 1 to 256 characters.",
            field=field,
            code="invalid_value",
        )
    return names


def _audit_note(weaker: Sequence[str], note: str, actor: Actor) -> str:
    """Return the note as the audit keeps it; a person must give one when the change weakens detection."""
    if weaker and not note.strip():
        if actor.user_id is not None:
            raise Invalid(
                f"This weakens detection ({', '.join(weaker)}). Give a reason.",
                field="note",
                code="note_needed",
            )
        return NO_NOTE
    return note[:MAX_NOTE_CHARACTERS]


def _weakened(
    below: list[ScopedValues], scope: Scope, before: dict[str, Any], after: dict[str, Any]
) -> list[str]:
    """List, by label, the settings that a changed override weakens."""
    old, new = (resolve([*below, (scope, values)]) for values in (before, after))
    return [FIELDS[name].label for name in weakened(old, new, frozenset((*before, *after)))]


def _weakened_by_rule(project_id: int, before: ToolRule, after: ToolRule) -> list[str]:
    weaker = []
    if _class_rank(after) > _class_rank(before):
        weaker.append("Exempt" if after.exempt else "Tool class")
    below = load_overrides(project_id).below(after.scope)
    return weaker + _weakened(below, after.scope, dict(before.values), dict(after.values))


def _class_rank(rule: ToolRule) -> int:
    # A pattern of several tools has no shipped class; each of them may.
    name = "exempt" if rule.exempt else rule.tool_class or shipped_traits(rule.pattern).tool_class
    return _WEAKER_CLASSES.index(name) if name in _WEAKER_CLASSES else 0


def _as_dict(row: ToolOverride) -> dict[str, Any]:
    names = ("tool_class", "ignore_arguments", "volatile_result_fields", "values", "exempt", "note")
    return {name: getattr(row, name) for name in names}
