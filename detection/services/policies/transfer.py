"""Export and import of a project's overrides and tool rules as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict, cast

from django.db import transaction

from detection.engine.policy import PolicyError
from detection.engine.scopes import SERVER, STORED_KINDS, Scope
from detection.models import Override, ToolOverride
from detection.services.audit import Actor
from detection.services.errors import Invalid
from detection.services.policies.documents import RULE_FACTS
from detection.services.policies.overrides import RuleFacts, save_override

FORMAT: Final = "loopguard.policies.v1"
MAX_SCOPES: Final = 1_000
"""Scopes in a document; a judgement, far above what a project has."""
_NAMES: Final = frozenset(("scope", "values", *RULE_FACTS))


class ScopeDocument(TypedDict):
    """The settings of one scope, and the facts of a tool rule."""

    scope: str
    values: Mapping[str, object]


class PoliciesDocument(TypedDict):
    """What a project has set, by scope; temporary overrides are no part of it."""

    format: str
    scopes: list[ScopeDocument]


def export_policies(project_id: int) -> PoliciesDocument:
    """Return the permanent overrides and tool rules of a project, by scope; two queries."""
    overrides = Override.objects.filter(project_id=project_id, expires_at=None)
    rules = ToolOverride.objects.filter(project_id=project_id, expires_at=None)
    scopes = [ScopeDocument(scope=str(row.scope), values=row.values) for row in overrides]
    for rule in rules:
        facts = {name: value for name in RULE_FACTS if (value := getattr(rule, name))}
        entry = {"scope": str(rule.scope), "values": rule.values, **facts}
        scopes.append(cast("ScopeDocument", entry))
    return {"format": FORMAT, "scopes": sorted(scopes, key=lambda one: one["scope"])}


@transaction.atomic
def import_policies(project_id: int, document: object, actor: Actor, note: str = "") -> int:
    """Save the scopes of a document over those of the project; scopes that it does not name stay.

    Parameters
    ----------
    document
        As `export_policies` returns it, from JSON.
    note
        Reason; required of a person if a scope weakens detection.

    Returns
    -------
    int
        The number of scopes. All of them are saved, or none.

    Raises
    ------
    Invalid
        Naming the scope and the value that are wrong.
    """
    scopes = document.get("scopes") if isinstance(document, dict) else None
    if not isinstance(document, dict) or document.get("format") != FORMAT or not isinstance(scopes, list):
        raise Invalid(
            f"The document must have the format `{FORMAT}` and `scopes`.",
            field="document",
            code="invalid_value",
        )
    if len(scopes) > MAX_SCOPES:
        raise Invalid(
            f"The document has more than {MAX_SCOPES} scopes.", field="document", code="out_of_range"
        )
    for entry in scopes:
        _import_scope(project_id, entry, actor, note)
    return len(scopes)


def _import_scope(project_id: int, entry: object, actor: Actor, note: str) -> None:
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("values", {}), dict)
        or not entry.keys() <= _NAMES
    ):
        raise Invalid("Each scope must have `scope` and `values`.", field="document", code="invalid_value")
    name = str(entry.get("scope", ""))[:400]
    try:
        scope = Scope.parse(name)
    except PolicyError:
        raise Invalid(f"`{name}` is no scope.", field="document", code="invalid_value") from None
    if scope == SERVER or scope.kind not in (*STORED_KINDS, "tool"):
        raise Invalid(f"`{name}` is no scope of a project.", field="document", code="invalid_value")
    try:
        save_override(project_id, scope, entry.get("values", {}), actor, note, **_facts(scope, entry))
    except Invalid as error:
        if error.field == "note":
            raise
        raise Invalid(f"{name}: {error.detail}", field="document", code=error.code) from error


def _facts(scope: Scope, entry: Mapping[str, Any]) -> RuleFacts:
    facts = {name: entry[name] for name in RULE_FACTS if name in entry}
    is_valid = (
        isinstance(facts.get("tool_class", ""), str)
        and isinstance(facts.get("exempt", False), bool)
        and all(
            isinstance(facts.get(name, []), list) for name in ("ignore_arguments", "volatile_result_fields")
        )
    )
    if not is_valid or (facts and scope.kind != "tool"):
        raise Invalid(
            f"`{scope}` has facts of a tool rule that are not allowed.",
            field="document",
            code="invalid_value",
        )
    return cast("RuleFacts", facts)
