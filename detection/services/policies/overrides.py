"""Changes of the stored tiers and tool rules; every one raises the policy version of the projects it holds for.

A change that makes detection milder needs a note from a person. A program's goes without one, since it has nobody to ask;
the audit then says that none was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any
from urllib.parse import quote, unquote

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F, Q, QuerySet

from detection.engine import policy
from detection.engine.fields import FIELDS
from detection.engine.tool_classes import shipped_traits
from detection.engine.weakening import weakened
from detection.models import AuditEntry, PolicyTier, Project, TierScope, ToolRule
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Invalid, NotFound
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

NO_NOTE, RESTORED = "no note given", "restored"
MAX_NOTE_CHARACTERS = 300
_MILD_CLASSES = ("", "poll", "wait", "exempt")
"""Ever milder; the other classes differ in what they look at, not in how much they let through."""


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


def loosened_by_tier(
    project_id: int | None, scope: str, backend: str, model: str, values: dict[str, Any]
) -> list[str]:
    """Name, for people, what would become milder if a tier were to set `values` and nothing else.

    Raises
    ------
    PolicyError
        For a value that is not allowed.
    """
    stored = _place(project_id, backend, model).first()
    below = _tiers_below(project_id, scope, backend)
    return _loosened(below, stored.values if stored else {}, values)


def loosened_by_rule(
    project_id: int, pattern: str, *, tool_class: str = "", values: dict[str, Any], exempt: bool = False
) -> list[str]:
    """Name, for people, what would become milder for the tools of a rule; a rule that sets nothing is one less."""
    stored = ToolRule.objects.filter(project_id=project_id, pattern=pattern).first()
    rule = ToolRule(pattern=pattern, tool_class=tool_class, values=values, exempt=exempt)
    return _loosened_by_rule(project_id, stored or ToolRule(pattern=pattern), rule)


def ask_why(milder: Sequence[str], note: str) -> None:
    """Refuse a change that makes detection milder without saying why.

    Raises
    ------
    Invalid
        `note_needed`, naming what becomes milder.
    """
    if milder and not note.strip():
        named = ", ".join(milder)
        raise Invalid(f"This weakens detection ({named}). Give a reason.", field="note", code="note_needed")


def _told(milder: Sequence[str], note: str, actor: Actor) -> str:
    """Return the note as the audit keeps it; people must give one where detection becomes milder."""
    if actor.user_id is not None:
        ask_why(milder, note)
    return NO_NOTE if milder and not note.strip() else note[:MAX_NOTE_CHARACTERS]


def _tiers_below(project_id: int | None, scope: str, backend: str) -> list[policy.Tier]:
    order = list(TierScope.values)
    wider = order[: order.index(scope)]
    rows = PolicyTier.objects.filter(
        Q(project=None) | Q(project_id=project_id), scope__in=wider, backend__in=("", backend)
    )
    tiers = sorted(rows, key=lambda tier: order.index(tier.scope))
    return [("environment", settings.TOOL_LOOP_VALUES), *((tier.source, tier.values) for tier in tiers)]


def _loosened(below: list[policy.Tier], before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    old, new = (policy.resolve([*below, ("this", own)]) for own in (before, after))
    return [FIELDS[name].label for name in weakened(old, new, frozenset((*before, *after)))]


def _loosened_by_rule(project_id: int, before: ToolRule, after: ToolRule) -> list[str]:
    milder = []
    if _class_rank(after) > _class_rank(before):
        milder.append("never judged" if after.exempt else "class")
    # What a backend or model sets for the same tool is not looked at: the rule holds for all of them.
    below = _tiers_below(project_id, TierScope.BACKEND, "")
    return milder + _loosened(below, before.values, after.values)


def _class_rank(rule: ToolRule) -> int:
    # A pattern of several tools has no shipped class; each of them may.
    name = "exempt" if rule.exempt else rule.tool_class or shipped_traits(rule.pattern).tool_class
    return _MILD_CLASSES.index(name) if name in _MILD_CLASSES else 0


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
    note
        Why. A person must say it where detection becomes milder.

    Returns
    -------
    PolicyTier or None
        None when the tier is empty now.

    Raises
    ------
    Invalid
        When the place or a value is not valid, or with `note_needed`.
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
    tier.scope, tier.note, tier.updated_by_id = scope, note[:MAX_NOTE_CHARACTERS], actor.user_id
    _checked(tier)
    told = _told(_loosened(_tiers_below(project_id, scope, backend), before, tier.values), note, actor)
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
            after={**tier.values, "note": told},
        )
        _bump(project_id)
    return tier if tier.values else None


def delete_tier(
    project_id: int | None, scope: str, backend: str, model: str, actor: Actor, note: str = ""
) -> None:
    """Remove a tier; the one below holds again, which may be the milder one."""
    if not _place(project_id, backend, model).exists():
        raise NotFound("There is no such tier.")
    save_tier(project_id, scope, backend, model, {}, actor, note)


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
    """Replace the rule for the tools whose name matches `pattern`; see `save_tier` for the note."""
    if not pattern.strip() or len(pattern) > 128:
        raise Invalid("A pattern has 1 to 128 characters.", field="pattern")
    rule = ToolRule.objects.select_for_update().filter(
        project_id=project_id, pattern=pattern
    ).first() or ToolRule(project_id=project_id, pattern=pattern)
    before = _rule_as_dict(rule) if rule.pk else None
    as_it_was = copy(rule)
    rule.tool_class, rule.exempt, rule.note = tool_class, exempt, note[:MAX_NOTE_CHARACTERS]
    rule.ignore_arguments = ignore_arguments or []
    rule.volatile_result_fields = volatile_result_fields or []
    rule.values = {name: value for name, value in (values or {}).items() if value is not None}
    rule.updated_by_id = actor.user_id
    _checked(rule)
    told = _told(_loosened_by_rule(project_id, as_it_was, rule), note, actor)
    rule.save()
    audit.record(
        actor,
        "policy.tool_rule",
        f"tool:{pattern}",
        project_id=project_id,
        before=before,
        after={**_rule_as_dict(rule), "note": told},
    )
    _bump(project_id)
    return rule


@transaction.atomic
def delete_tool_rule(project_id: int, pattern: str, actor: Actor, note: str = "") -> None:
    """Remove a rule; see `save_tier` for the note."""
    rule = ToolRule.objects.select_for_update().filter(project_id=project_id, pattern=pattern).first()
    if rule is None:
        raise NotFound("There is no such tool rule.")
    told = _told(_loosened_by_rule(project_id, rule, ToolRule(pattern=pattern)), note, actor)
    before = _rule_as_dict(rule)
    rule.delete()
    audit.record(
        actor,
        "policy.tool_rule",
        f"tool:{pattern}",
        project_id=project_id,
        before=before,
        after={"note": told} if told else None,
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
            delete_tool_rule(project_id, pattern, actor, RESTORED)
        else:
            save_tool_rule(
                project_id, pattern, actor=actor, **(before | {"note": before.get("note") or RESTORED})
            )
        return
    scope, _, place = entry.subject.partition(":")
    backend, _, model = place.partition("/")
    save_tier(project_id, scope, unquote(backend), model, before, actor, note=RESTORED)
