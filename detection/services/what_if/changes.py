"""A policy change that is tried without being saved: the proposed override or tool rule of one scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Required, cast

from detection.engine.policy import PolicyError, ToolRule, stored_values
from detection.engine.scopes import SESSION, STORED_KINDS, Scope
from detection.engine.tool_classes import ToolClass
from detection.models import Session
from detection.selectors.policies import ProjectOverrides
from detection.services.errors import Invalid, NotFound
from detection.services.policies.overrides import RuleFacts, checked, checked_names, invalid_setting
from detection.sql.pipeline import fetch

SCOPES = "server, project, agent:NAME, backend:NAME, model:BACKEND/NAME, tool:PATTERN or session"


class ChangeDocument(RuleFacts, total=False):
    """A change as JSON; `session` only where it is about one, and the facts only of a tool rule."""

    scope: Required[str]
    values: Required[dict[str, Any]]
    session: str


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """The proposed override or tool rule of a scope, as a whole; an empty one stands for its deletion.

    Attributes
    ----------
    scope
        Where it applies.
    values
        Its settings, validated.
    session
        Name of the session, for the scope of a session.
    rule
        The tool rule, for the scope of tools.
    """

    scope: Scope
    values: Mapping[str, Any]
    session: str = ""
    rule: ToolRule | None = None

    def applied(self, stored: ProjectOverrides) -> ProjectOverrides:
        """Return the overrides of the project with this change. Settings of a session are not among them."""
        values, rules = dict(stored.values), [*stored.tool_rules]
        if self.rule is not None:
            rules = [rule for rule in rules if rule.pattern != self.rule.pattern] + [self.rule]
            order = {name: place for place, name in enumerate(_in_order(rule.pattern for rule in rules))}
            rules.sort(key=lambda rule: order[rule.pattern])
        elif self.scope != SESSION:
            values.pop(self.scope, None)
            if self.values:
                values[self.scope] = self.values
        return ProjectOverrides(values, tuple(rules), stored.tags_of_agents)

    def settings_of(self, session: str) -> Mapping[str, Any] | None:
        """Return the settings that a session would have; None if this change is not about it."""
        return self.values if self.scope == SESSION and self.session == session else None

    def as_dict(self) -> ChangeDocument:
        """Return the change as JSON that `read` accepts."""
        document: ChangeDocument = {"scope": str(self.scope), "values": dict(self.values)}
        if self.scope == SESSION:
            document["session"] = self.session
        return cast("ChangeDocument", {**document, **self.facts})

    @property
    def facts(self) -> RuleFacts:
        """The facts of the tool rule besides its settings; empty for another scope."""
        if self.rule is None:
            return {}
        return {
            "tool_class": self.rule.tool_class or "",
            "ignore_arguments": [*self.rule.ignore_arguments],
            "volatile_result_fields": [*self.rule.volatile_result_fields],
            "exempt": self.rule.exempt,
        }


def read(document: ChangeDocument) -> PolicyChange:
    """Parse a stored change; settings that no longer exist are dropped."""
    scope, values = Scope.parse(document["scope"]), stored_values(document["values"])
    if scope.kind != "tool":
        return PolicyChange(scope, values, document.get("session", ""))
    return PolicyChange(scope, values, rule=_rule(scope, values, document))


def check(
    project_id: int,
    scope: str,
    values: Mapping[str, Any],
    *,
    session: str = "",
    tool_class: str = "",
    ignore_arguments: Sequence[str] = (),
    volatile_result_fields: Sequence[str] = (),
    exempt: bool = False,
) -> PolicyChange:
    """Return a valid change.

    Parameters
    ----------
    scope
        As the source of a setting: `project`, `agent:triage`, `model:openai/gpt-5`, `tool:search_*`, `session`.
    values
        The whole override; a setting that is absent or None is inherited.
    session
        Name of the session, for the scope `session`.
    tool_class, ignore_arguments, volatile_result_fields, exempt
        The facts of a tool rule, for the scope of tools.

    Raises
    ------
    Invalid
        For a scope or a value that is not allowed.
    NotFound
        If the project does not have the session.
    """
    try:
        where = Scope.parse(scope)
    except PolicyError:
        raise Invalid(f"`scope` must be one of {SCOPES}.", field="scope", code="invalid_value") from None
    if where.kind not in (*STORED_KINDS, "tool", "session"):
        raise Invalid(f"`scope` must be one of {SCOPES}.", field="scope", code="invalid_value")
    if (where == SESSION) != bool(session):
        raise Invalid(
            "`session` is required for the scope `session`, and for no other.",
            field="session",
            code="missing",
        )
    cleaned = checked(where, dict(values))
    facts: RuleFacts = {
        "tool_class": tool_class,
        "ignore_arguments": checked_names("ignore_arguments", ignore_arguments),
        "volatile_result_fields": checked_names("volatile_result_fields", volatile_result_fields),
        "exempt": exempt,
    }
    if where.kind == "tool":
        try:
            return PolicyChange(where, cleaned, rule=_rule(where, cleaned, facts))
        except PolicyError as error:
            raise invalid_setting(error) from error
    wrong = next((name for name, value in facts.items() if value), None)
    if wrong:
        raise Invalid(f"`{wrong}` belongs to the scope of tools.", field=wrong, code="invalid_value")
    if session and not Session.objects.filter(project_id=project_id, external_id=session).exists():
        raise NotFound
    return PolicyChange(where, cleaned, session)


def _rule(scope: Scope, values: Mapping[str, Any], facts: RuleFacts) -> ToolRule:
    return ToolRule(
        pattern=scope.pattern,
        tool_class=cast("ToolClass | None", facts.get("tool_class") or None),
        values=values,
        ignore_arguments=tuple(facts.get("ignore_arguments", ())),
        volatile_result_fields=tuple(facts.get("volatile_result_fields", ())),
        exempt=bool(facts.get("exempt", False)),
    )


def _in_order(patterns: Any) -> list[str]:
    """Sort patterns as the database sorts tool rules, whose later ones win."""
    return [name for (name,) in fetch("SELECT p FROM unnest(%s::text[]) AS p ORDER BY p", [[*patterns]])]
