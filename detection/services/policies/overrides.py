"""Change stored overrides and tool rules; each change raises the policy version of the projects it applies to.

A tool rule is the override of the scope of tools. A temporary override is a row of its own, which applies until it
expires; a permanent change ends it.

A person who weakens detection gives a reason. For a program it is optional; the audit then says that none was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict, Unpack, cast

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from detection.engine.fields import FIELDS
from detection.engine.policy import PolicyError, ToolRule, resolve, stored_values, validate
from detection.engine.scopes import MAX_NAME_CHARACTERS, SERVER, STORED_KINDS, Scope
from detection.engine.tool_classes import shipped_traits
from detection.engine.weakening import weakened
from detection.models import AuditEntry, Override, Project, StoredSettings, ToolOverride
from detection.selectors.policies import load_overrides, model_of, rows_at, tool_rule
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound, found
from detection.services.policies.documents import (
    EXPIRES_AT,
    RULE_FACTS,
    Settings,
    document_of,
    settings_of,
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
_LISTS: Final = frozenset(("ignore_arguments", "volatile_result_fields"))
_NOT_SETTINGS = (*MAX_NAME_CHARACTERS, "scope", "tool_class")
_WEAKER_CLASSES = ("", "poll", "wait", "exempt")
"""Classes in order of decreasing strictness; other classes differ in what they compare, not in strictness."""


class RuleFacts(TypedDict, total=False):
    """The facts of a tool rule besides its settings."""

    tool_class: str
    ignore_arguments: Sequence[str]
    volatile_result_fields: Sequence[str]
    exempt: bool


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


def tool_scope(pattern: str) -> Scope:
    """Return the scope of the tools that match a pattern; `Invalid` for one that is none."""
    try:
        return Scope("tool", pattern=pattern)
    except PolicyError as error:
        raise invalid_setting(error) from error


@transaction.atomic
def save_override(
    project_id: int | None,
    scope: Scope,
    values: Mapping[str, Any],
    actor: Actor,
    note: str = "",
    expires_at: datetime | None = None,
    *,
    version: str | None = None,
    **facts: Unpack[RuleFacts],
) -> StoredSettings | None:
    """Replace the override or the tool rule of a scope.

    Parameters
    ----------
    project_id
        None for the server, whose override applies to every project.
    scope
        The server, the project, or an agent, backend, model or pattern of tools within it.
    values
        All of its settings; one that is absent or None is inherited. An empty override is deleted, unlike a rule.
    note
        Reason, at most `MAX_NOTE_CHARACTERS`. Required of a person who weakens detection.
    expires_at
        When what is permanently stored takes effect again, at most `MAX_EXPIRY` ahead.
    version
        `override_version` of what the person has seen; None checks nothing.
    facts
        Those of a tool rule.

    Returns
    -------
    StoredSettings or None
        None when the override is empty.

    Raises
    ------
    Invalid
        `invalid_setting` for a name or value that is not allowed, `note_needed` without a required reason.
    ChangedMeanwhile
        When it was changed since.
    """
    check_expiry(expires_at)
    if scope.kind not in (*STORED_KINDS, "tool") or (project_id is None) != (scope == SERVER):
        raise Invalid("Only the server's override is without a project.", field="scope")
    row = _new_row(project_id, scope, checked(scope, dict(values)), facts)
    row.note, row.expires_at = note[:MAX_NOTE_CHARACTERS], expires_at
    _replace(project_id, scope, row, actor, note, version)
    return row if row.pk is not None else None


@transaction.atomic
def set_value(
    project_id: int | None,
    scope: Scope,
    name: str,
    value: Any,
    actor: Actor,
    note: str = "",
    expires_at: datetime | None = None,
    *,
    version: str | None = None,
) -> None:
    """Set one setting of the override or tool rule of a scope; its other settings and facts stay.

    Parameters
    ----------
    value
        None inherits it again; what then contains nothing is deleted.
    expires_at
        When what is permanently stored at the scope takes effect again.

    Raises
    ------
    Invalid, ChangedMeanwhile
        See `save_override`.
    """
    _lock(project_id)
    values, facts = _parts(settings_of(document_of(_in_effect(project_id, scope))))
    values[name] = value
    if scope.kind == "tool" and value is None and not facts and len(values) == 1:
        delete_override(project_id, scope, actor, note, version=version)
    else:
        save_override(project_id, scope, values, actor, note, expires_at, version=version, **facts)


@transaction.atomic
def delete_override(
    project_id: int | None, scope: Scope, actor: Actor, note: str = "", *, version: str | None = None
) -> None:
    """Delete the override or tool rule of a scope, which inherits everything again; that may weaken detection.

    Raises
    ------
    NotFound
        When the scope has none.
    ChangedMeanwhile
        When its version is no longer `version`; see `save_override`.
    """
    if _in_effect(project_id, scope) is None:
        raise NotFound(f"{'Tool rule' if scope.kind == 'tool' else 'Override'} not found in this project.")
    _replace(project_id, scope, None, actor, note, version)


def override_version(row: StoredSettings | None) -> str:
    """Return the version of an override or tool rule as a form shows it."""
    return version_of(document_of(row))


def history(
    project_id: int, limit: int = 100, *, start: datetime | None = None, end: datetime | None = None
) -> list[AuditEntry]:
    """List the changes of this project's overrides and of the server's, newest first, also of a time only."""
    rows = AuditEntry.objects.filter(
        Q(project_id=project_id) | Q(project_id=None), action__startswith="policy."
    )
    if start is not None:
        rows = rows.filter(at__gte=start)
    if end is not None:
        rows = rows.filter(at__lt=end)
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
    Conflict
        ``expired`` when what was stored before the change was temporary, and its time is over.
    """
    entry = _change(project_id, entry_id)
    scope = Scope.parse(entry.subject)
    if entry.before is None:
        delete_override(project_id, scope, actor, RESTORED)
    else:
        before = settings_of(entry.before)
        _require_future(before)
        _save(project_id, scope, before, actor, str(entry.before.get("note") or RESTORED))
        if EXPIRES_AT in before:
            _keep_below(project_id, scope, _permanent_before(project_id, entry))


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
    NotFound, Conflict
        See `restore`.
    """
    entry = _change(project_id, entry_id)
    scope = Scope.parse(entry.subject)
    _lock(project_id)
    _expire(project_id, scope)
    stored = settings_of(document_of(_in_effect(project_id, scope)))
    restored = without_change(entry, stored)
    if restored is None or restored == stored:
        return restored is not None
    if restored.get(EXPIRES_AT) != stored.get(EXPIRES_AT):
        _require_future(restored)
    elif EXPIRES_AT in restored:
        below = _undo_below(project_id, scope, entry)
        if {**below, EXPIRES_AT: restored[EXPIRES_AT]} == restored and EXPIRES_AT not in settings_of(
            entry.before
        ):
            del restored[EXPIRES_AT]
    if not restored and entry.before is None:
        delete_override(project_id, scope, actor, RESTORED)
        return True
    _save(project_id, scope, restored, actor, _note_without(entry, _in_effect(project_id, scope)))
    if EXPIRES_AT in restored and EXPIRES_AT not in stored:
        _keep_below(project_id, scope, _permanent_before(project_id, entry))
    return True


def _undo_below(project_id: int, scope: Scope, entry: AuditEntry) -> Settings:
    """Undo a permanent change in what a later temporary row ends with; returns the settings of that."""
    permanent = rows_at(project_id, scope).filter(expires_at=None).first()
    below = settings_of(document_of(permanent))
    is_temporary = EXPIRES_AT in settings_of(entry.after)
    restored = None if is_temporary or permanent is None else without_change(entry, below)
    if restored is None:
        return below
    restored.pop(EXPIRES_AT, None)
    _keep_below(project_id, scope, restored if restored or entry.before else None)
    return restored


def _keep_below(project_id: int, scope: Scope, settings: Settings | None) -> None:
    """Store what a temporary row ends with; the audit has an entry for that row only."""
    permanent = rows_at(project_id, scope).filter(expires_at=None)
    if settings is None:
        permanent.delete()
        return
    row, known = _new_row(project_id, scope, *_parts(settings)), permanent.first()
    row.note = known.note if known else RESTORED
    _write(row, known)


def _permanent_before(project_id: int, entry: AuditEntry) -> Settings | None:
    """Return the permanent settings before a change of temporary ones."""
    earlier = AuditEntry.objects.filter(
        project_id=project_id, action=entry.action, subject=entry.subject, pk__lte=entry.pk
    )
    first = earlier.exclude(before__has_key=EXPIRES_AT).order_by("-pk").first()
    return settings_of(first.before) if first is not None and first.before else None


def _note_without(entry: AuditEntry, row: StoredSettings | None) -> str:
    """Return the note of a rule without a change: the earlier one, or that of a later change."""
    if isinstance(row, ToolOverride) and row.note != (entry.after or {}).get("note"):
        return row.note or RESTORED
    return str((entry.before or {}).get("note") or RESTORED)


def _save(project_id: int, scope: Scope, settings: Settings, actor: Actor, note: str) -> None:
    values, facts = _parts(settings)
    save_override(project_id, scope, values, actor, note, settings.get(EXPIRES_AT), **facts)


def _parts(settings: Settings) -> tuple[dict[str, Any], RuleFacts]:
    facts = {name: settings[name] for name in RULE_FACTS if name in settings}
    return {name: settings[name] for name in FIELDS if name in settings}, cast("RuleFacts", facts)


def _change(project_id: int, entry_id: int) -> AuditEntry:
    rows = AuditEntry.objects.filter(pk=entry_id, project_id=project_id, action__startswith="policy.")
    return found(rows.first(), "Change not found in this project.")


def _require_future(settings: Settings) -> None:
    if EXPIRES_AT in settings and settings[EXPIRES_AT] <= timezone.now():
        raise Conflict("What was stored before this change has expired.", code="expired")


def expire_due() -> int:
    """Delete expired overrides and tool rules; returns how many.

    Used by the sweeper. Expired rows have no effect whether or not this runs; this writes the history and frees the
    row.
    """
    due = [
        (row.project_id, row.scope)
        for model in (Override, ToolOverride)
        for row in model.objects.filter(expires_at__lte=timezone.now())[:MAX_EXPIRED]
    ]
    return sum(_expire(project_id, scope) for project_id, scope in due)


@transaction.atomic
def _expire(project_id: int | None, scope: Scope) -> bool:
    _lock(project_id)
    row = rows_at(project_id, scope).filter(expires_at__lte=timezone.now()).first()
    if row is None:
        return False
    before = _audited(scope, row)
    row.delete()
    _record(audit.SYSTEM, project_id, scope, before, _audited(scope, _in_effect(project_id, scope)), EXPIRED)
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


def _in_effect(project_id: int | None, scope: Scope) -> StoredSettings | None:
    return rows_at(project_id, scope).in_effect().first()


def _new_row(
    project_id: int | None, scope: Scope, values: Mapping[str, Any], facts: RuleFacts
) -> StoredSettings:
    model = model_of(scope)
    given: dict[str, Any] = {"project_id": project_id, "values": values, **facts}
    for name in _LISTS & given.keys():
        given[name] = checked_names(name, given[name])
    return model(**given, **{name: getattr(scope, name) for name in model.scope_fields})


def _replace(
    project_id: int | None,
    scope: Scope,
    row: StoredSettings | None,
    actor: Actor,
    note: str,
    version: str | None,
) -> None:
    """Replace what is stored at a scope: a permanent row replaces both, a temporary one only another one."""
    _lock(project_id)
    _expire(project_id, scope)
    stored = _in_effect(project_id, scope)
    require_version(version, document_of(stored))
    audit_note = _audit_note(_weakened(project_id, scope, stored, row), note, actor)
    before = _audited(scope, stored)
    if row is not None and not (row.values or row.expires_at or scope.kind == "tool"):
        row = None
    known = {one.expires_at is None: one for one in rows_at(project_id, scope)}
    if row is not None:
        row.updated_by_id = actor.user_id
        _write(row, known.pop(row.expires_at is None, None))
    if row is None or row.expires_at is None:
        for one in known.values():
            one.delete()
    if (after := _audited(scope, row)) != before:
        _record(actor, project_id, scope, before, after, audit_note)


def _write(row: StoredSettings, known: StoredSettings | None) -> None:
    """Write a row over the one of its kind that it replaces."""
    if known is not None:
        row.pk, row._state.adding = known.pk, False
    row.save()


def _audited(scope: Scope, row: StoredSettings | None) -> dict[str, Any] | None:
    """Return what the audit keeps of a row: None for a missing rule, an empty document for a missing override."""
    document = document_of(row)
    if scope.kind == "tool":
        return document or None
    return {name: value for name, value in document.items() if name != "note"}


def _record(
    actor: Actor,
    project_id: int | None,
    scope: Scope,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    note: str,
) -> None:
    """Write the audit of a change, and make every process load the overrides again at the next call."""
    action = "policy.tool_rule" if scope.kind == "tool" else "policy.save"
    noted = None if after is None and not note else {**(after or {}), "note": note}
    audit.record(actor, action, str(scope), project_id=project_id, before=before, after=noted)
    projects = Project.objects.all() if project_id is None else Project.objects.filter(pk=project_id)
    projects.update(policy_version=F("policy_version") + 1)
    if project_id is not None:
        publish_after_commit(project_id, Hint("policy"))


def _lock(project_id: int | None) -> None:
    """Serialize changes of a project's overrides; calls do not wait for them."""
    rows = Project.objects.all() if project_id is None else Project.objects.filter(pk=project_id)
    list(rows.order_by("pk").select_for_update(no_key=True).values_list("pk"))


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
    project_id: int | None, scope: Scope, before: StoredSettings | None, after: StoredSettings | None
) -> list[str]:
    """List, by label, what a change weakens."""
    below = load_overrides(project_id).below(scope)
    old, new = (stored_values(row.values) if row is not None else {} for row in (before, after))
    one, other = (resolve([*below, (scope, values)]) for values in (old, new))
    labels = [FIELDS[name].label for name in weakened(one, other, frozenset((*old, *new)))]
    if scope.kind == "tool":
        try:
            was, is_now = (
                tool_rule(row) if isinstance(row, ToolOverride) else ToolRule(scope.pattern)
                for row in (before, after)
            )
        except PolicyError as error:
            raise invalid_setting(error) from error
        if _class_rank(is_now) > _class_rank(was):
            labels.insert(0, "Exempt" if is_now.exempt else "Tool class")
    return labels


def _class_rank(rule: ToolRule) -> int:
    # A pattern of several tools has no shipped class; each of them may.
    name = "exempt" if rule.exempt else rule.tool_class or shipped_traits(rule.pattern).tool_class
    return _WEAKER_CLASSES.index(name) if name in _WEAKER_CLASSES else 0
