"""Undo one change of settings without touching what was set after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from django.utils import timezone

from detection.engine.fields import FIELDS
from detection.engine.scopes import Scope
from detection.models import AuditEntry, Override, ToolOverride

RULE_FIELDS: Final = ("tool_class", "ignore_arguments", "volatile_result_fields", "exempt")
EXPIRES_AT: Final = "expires_at"

_Settings = dict[str, Any]
"""Settings, facts of a tool rule and the expiry by name; what is not set is absent."""


def settings_of(document: Mapping[str, Any] | None) -> _Settings:
    """Return the settings in an audit entry or in `Override.after_expiry`, in one form for overrides and tool rules."""
    given = {**(document or {}), **(document or {}).get("values", {})}
    found = {name: given[name] for name in FIELDS if name in given}
    found.update({name: given[name] for name in RULE_FIELDS if given.get(name)})
    if given.get(EXPIRES_AT):
        found[EXPIRES_AT] = datetime.fromisoformat(given[EXPIRES_AT])
    return found


def settings_at(project_id: int, scopes: Iterable[Scope]) -> dict[Scope, _Settings]:
    """Return the settings that apply now at scopes of a project, as far as they are stored; two queries."""
    kinds: dict[bool, list[Scope]] = {True: [], False: []}
    for scope in scopes:
        kinds[scope.kind == "tool"].append(scope)
    found: dict[Scope, _Settings] = {}
    if kinds[True]:
        patterns = [scope.pattern for scope in kinds[True]]
        rules = ToolOverride.objects.filter(project_id=project_id, pattern__in=patterns)
        found |= {row.scope: stored_settings(row) for row in rules}
    if kinds[False]:
        # Also rows of other combinations of these names, which nobody asks for.
        rows = Override.objects.filter(
            project_id=project_id,
            agent__in={scope.agent for scope in kinds[False]},
            backend__in={scope.backend for scope in kinds[False]},
            model__in={scope.model for scope in kinds[False]},
        )
        found |= {row.scope: stored_settings(row) for row in rows}
    return found


def stored_settings(row: Override | ToolOverride | None) -> _Settings:
    """Return the settings of a row that apply now: after its time, those that it reverts to."""
    if row is None:
        return {}
    if row.expires_at is not None and row.expires_at <= timezone.now():
        return settings_of(row.after_expiry)
    facts = {name: getattr(row, name) for name in RULE_FIELDS if isinstance(row, ToolOverride)}
    found = settings_of({**facts, "values": row.values})
    return {**found, EXPIRES_AT: row.expires_at} if row.expires_at is not None else found


def without_change(entry: AuditEntry, stored: Mapping[str, Any]) -> _Settings | None:
    """Return stored settings with those that a change has set restored, where they are still as it set them.

    Parameters
    ----------
    entry
        The change.
    stored
        What is stored now, as `stored_settings` or `settings_of` return it.

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
