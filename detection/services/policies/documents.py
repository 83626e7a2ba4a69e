"""Overrides and tool rules as documents: what a form shows, what the audit keeps, and one change of them undone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from django.utils import timezone

from detection.engine.fields import FIELDS
from detection.engine.scopes import Scope
from detection.models import AuditEntry, Override, StoredSettings, ToolOverride

RULE_FACTS: Final[Mapping[str, Any]] = {
    "tool_class": "", "ignore_arguments": [], "volatile_result_fields": [], "exempt": False,
}  # fmt: skip
"""The facts of a tool rule besides its settings, with their empty values."""
EXPIRES_AT: Final = "expires_at"

Settings = dict[str, Any]
"""Settings, facts of a tool rule and the expiry by name; what is not set is absent."""


def document_of(row: StoredSettings | None) -> dict[str, Any]:
    """Return what a form shows of a row; empty if nothing is stored."""
    if row is None or row.pk is None:
        return {}
    is_rule = isinstance(row, ToolOverride)
    own = (
        {**{name: getattr(row, name) for name in RULE_FACTS}, "values": row.values} if is_rule else row.values
    )
    expiry = {EXPIRES_AT: row.expires_at.isoformat()} if row.expires_at else {}
    return {**own, "note": row.note, **expiry}


def settings_of(document: Mapping[str, Any] | None) -> Settings:
    """Return the settings of a document, in one form for overrides and tool rules."""
    given = {**(document or {}), **(document or {}).get("values", {})}
    found = {name: given[name] for name in FIELDS if name in given}
    found.update({name: given[name] for name in RULE_FACTS if given.get(name)})
    if given.get(EXPIRES_AT):
        found[EXPIRES_AT] = datetime.fromisoformat(given[EXPIRES_AT])
    return found


def settings_at(project_id: int, scopes: Collection[Scope]) -> dict[Scope, Settings]:
    """Return the settings that apply now at scopes of a project, as far as they are stored; two queries."""
    rules = ToolOverride.objects.filter(
        project_id=project_id, pattern__in={scope.pattern for scope in scopes}
    )
    # Also rows of other combinations of these names, which nobody asks for.
    rows = Override.objects.filter(
        project_id=project_id,
        agent__in={scope.agent for scope in scopes},
        backend__in={scope.backend for scope in scopes},
        model__in={scope.model for scope in scopes},
    )
    return {row.scope: settings_of(document_of(row)) for row in (*rules.in_effect(), *rows.in_effect())}


def without_change(entry: AuditEntry, stored: Mapping[str, Any]) -> Settings | None:
    """Return stored settings with those that a change has set restored, where they are still as it set them.

    Parameters
    ----------
    entry
        The change.
    stored
        What is stored now, as `settings_of` returns it.

    Returns
    -------
    dict or None
        None when all that it has set was changed since. The end of a temporary change is no such change; the settings
        are then returned as they are.
    """
    before, after = settings_of(entry.before), settings_of(entry.after)
    changed = _differing(before, after)
    own = changed - {EXPIRES_AT} or changed
    left = changed - _differing(stored, after)
    if not left & own:
        expires_at = after.get(EXPIRES_AT)
        has_expired = expires_at is not None and expires_at <= timezone.now()
        return dict(stored) if has_expired and not own & _differing(stored, before) else None
    kept = {name: value for name, value in stored.items() if name not in left}
    return kept | {name: before[name] for name in left if name in before}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}
