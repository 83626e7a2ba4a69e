"""Changes of the stored tiers and tool rules; every one raises the policy version of the projects it holds for."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F, Q, QuerySet

from detection.models import AuditEntry, PolicyTier, Project, TierScope, ToolRule
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Invalid, NotFound
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit


def _bump(project_id: int | None) -> None:
    """Make every process read the tiers anew with the next call."""
    projects = Project.objects.all() if project_id is None else Project.objects.filter(pk=project_id)
    projects.order_by("pk").update(policy_version=F("policy_version") + 1)
    if project_id is not None:
        publish_after_commit(project_id, Hint("policy"))


def _place(project_id: int | None, backend: str, model: str) -> QuerySet[PolicyTier]:
    of_project = Q(project=None) if project_id is None else Q(project_id=project_id)
    return PolicyTier.objects.filter(of_project, backend=backend, model=model)


def _subject(tier: PolicyTier) -> str:
    """Name a tier in the audit so that it can be found again: of two names only the model's may hold a plain slash."""
    place = "/".join(part for part in (quote(tier.backend, safe=" :"), tier.model) if part)
    return f"{tier.scope}:{place}" if place else tier.scope


def _checked(row: PolicyTier | ToolRule) -> None:
    try:
        row.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        name, messages = next(iter(error.message_dict.items()))
        raise Invalid(" ".join(messages), field=name, code="invalid_setting") from error


def _user_id(actor: Actor) -> int | None:
    return actor.user_id


@transaction.atomic
def save_tier(
    project_id: int | None,
    scope: str,
    backend: str,
    model: str,
    values: dict[str, Any],
    actor: Actor,
    note: str = "",
) -> PolicyTier | None:
    """Replace the settings of one tier.

    Parameters
    ----------
    project_id
        None for the server's tier, which holds for every project.
    scope
        One of `TierScope`; backend and model must fit it.
    values
        The whole tier; a field that is absent or None is inherited. An empty tier is removed.

    Returns
    -------
    PolicyTier or None
        None when the tier is empty now.

    Raises
    ------
    Invalid
        When the place or a value is not valid.
    """
    if (project_id is None) != (scope == TierScope.SERVER):
        raise Invalid("Only the server's tier is without a project.", field="scope")
    if bool(backend) != (scope in (TierScope.BACKEND, TierScope.MODEL)) or bool(model) != (
        scope == TierScope.MODEL
    ):
        raise Invalid("A backend tier names a backend, a model tier a backend and a model.", field="scope")
    tier = _place(project_id, backend, model).select_for_update().first() or PolicyTier(
        project_id=project_id, backend=backend, model=model, scope=scope
    )
    before = dict(tier.values)
    tier.values = {name: value for name, value in values.items() if value is not None}
    tier.scope, tier.note, tier.updated_by_id = scope, note[:300], _user_id(actor)
    _checked(tier)
    if tier.values:
        tier.save()
    elif tier.pk:
        tier.delete()
    if tier.values != before:
        audit.record(
            actor,
            "policy.save",
            _subject(tier),
            project_id=project_id,
            before=before,
            after={**tier.values, "note": note},
        )
        _bump(project_id)
    return tier if tier.values else None


def delete_tier(project_id: int | None, scope: str, backend: str, model: str, actor: Actor) -> None:
    """Remove a tier; the one below holds again."""
    if not _place(project_id, backend, model).exists():
        raise NotFound("There is no such tier.")
    save_tier(project_id, scope, backend, model, {}, actor)


@transaction.atomic
def save_tool_rule(
    project_id: int,
    pattern: str,
    *,
    actor: Actor,
    tool_class: str = "",
    ignore_arguments: list[str] | None = None,
    volatile_result_fields: list[str] | None = None,
    values: dict[str, Any] | None = None,
    exempt: bool = False,
    note: str = "",
) -> ToolRule:
    """Replace the rule for the tools whose name matches `pattern`."""
    if not pattern.strip() or len(pattern) > 128:
        raise Invalid("A pattern has 1 to 128 characters.", field="pattern")
    rule = ToolRule.objects.select_for_update().filter(
        project_id=project_id, pattern=pattern
    ).first() or ToolRule(project_id=project_id, pattern=pattern)
    before = _rule_as_dict(rule) if rule.pk else None
    rule.tool_class, rule.exempt, rule.note = tool_class, exempt, note[:300]
    rule.ignore_arguments = ignore_arguments or []
    rule.volatile_result_fields = volatile_result_fields or []
    rule.values = {name: value for name, value in (values or {}).items() if value is not None}
    rule.updated_by_id = _user_id(actor)
    _checked(rule)
    rule.save()
    audit.record(
        actor,
        "policy.tool_rule",
        f"tool:{pattern}",
        project_id=project_id,
        before=before,
        after=_rule_as_dict(rule),
    )
    _bump(project_id)
    return rule


@transaction.atomic
def delete_tool_rule(project_id: int, pattern: str, actor: Actor) -> None:
    """Remove a rule."""
    rule = ToolRule.objects.select_for_update().filter(project_id=project_id, pattern=pattern).first()
    if rule is None:
        raise NotFound("There is no such tool rule.")
    before = _rule_as_dict(rule)
    rule.delete()
    audit.record(
        actor, "policy.tool_rule", f"tool:{pattern}", project_id=project_id, before=before, after=None
    )
    _bump(project_id)


def _rule_as_dict(rule: ToolRule) -> dict[str, Any]:
    names = ("tool_class", "ignore_arguments", "volatile_result_fields", "values", "exempt", "note")
    return {name: getattr(rule, name) for name in names}


def history(project_id: int, limit: int = 100) -> list[AuditEntry]:
    """List the changes of this project's settings and of the server's, newest first."""
    rows = AuditEntry.objects.filter(
        Q(project_id=project_id) | Q(project_id=None), action__startswith="policy."
    )
    return list(rows[:limit])


@transaction.atomic
def restore(project_id: int, entry_id: int, actor: Actor) -> None:
    """Put a tier or tool rule back to what it was before the change that `entry_id` tells of."""
    entry = AuditEntry.objects.filter(
        pk=entry_id, project_id=project_id, action__startswith="policy."
    ).first()
    if entry is None:
        raise NotFound("There is no such change in this project.")
    before = dict(entry.before or {})
    if entry.action == "policy.tool_rule":
        pattern = entry.subject.removeprefix("tool:")
        if entry.before is None:
            delete_tool_rule(project_id, pattern, actor)
        else:
            save_tool_rule(project_id, pattern, actor=actor, **before)
        return
    scope, _, place = entry.subject.partition(":")
    backend, _, model = place.partition("/")
    save_tier(project_id, scope, unquote(backend), model, before, actor, note="restored")
