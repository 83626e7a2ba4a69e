"""Effective settings: the stored overrides of a project, resolved for a call.

`policy_cache` keeps them in the process until a change raises the project's policy version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from django.conf import settings
from django.db.models import Q

from detection.engine.policy import Policy, ScopedValues, ToolRule, resolve, stored_values
from detection.engine.scopes import ENVIRONMENT, SESSION, Scope
from detection.engine.tool_classes import ToolClass
from detection.models import Override, Project, Session, ToolOverride
from detection.selectors.project_cache import ProjectCache

MAX_RESOLVED = 2000


@dataclass(slots=True)
class ProjectOverrides:
    """The overrides and tool rules that apply to a project at one policy version, and policies resolved from them."""

    values: Mapping[Scope, Mapping[str, Any]]
    tool_rules: tuple[ToolRule, ...]
    _resolved: OrderedDict[tuple[str, ...], Policy] = field(default_factory=OrderedDict)

    def policy_for(self, agent: str, backend: str, model: str, session_values: Mapping[str, Any]) -> Policy:
        """Resolve the policy of a session, before a tool is considered; costs a dictionary look-up once it is known."""
        key = (agent, backend, model, repr(session_values) if session_values else "")
        known = self._resolved.get(key)
        if known is not None:
            return known
        # An event may name a model without a backend; no override applies to that.
        scope = Scope("session", agent, backend, model)
        resolved = resolve([*self.below(scope), (SESSION, stored_values(session_values))], self.tool_rules)
        if len(self._resolved) >= MAX_RESOLVED:
            self._resolved.popitem(last=False)
        self._resolved[key] = resolved
        return resolved

    def below(self, scope: Scope) -> list[ScopedValues]:
        """List the overrides that a scope inherits, widest first."""
        return [(wider, self.values[wider]) for wider in scope.below() if wider in self.values]

    def inherited(self, scope: Scope, own: Mapping[str, Any]) -> Policy:
        """Resolve what applies at a scope where its own override sets nothing: a preset of its own decides, the rest comes from outside."""
        outside = resolve(self.below(scope))
        if "preset" not in own:
            return outside
        inside = resolve([*self.below(scope), (scope, {"preset": own["preset"]})])
        return Policy(
            {**inside.values, "preset": outside.values["preset"]},
            {**inside.sources, "preset": outside.sources["preset"]},
        )


def load_overrides(project_id: int | None) -> ProjectOverrides:
    """Read the overrides that apply to a project, or with None only those of every project; two queries."""
    rows = Override.objects.filter(Q(project_id=project_id) | Q(project=None))
    rules = ToolOverride.objects.filter(project_id=project_id) if project_id else ()
    return ProjectOverrides(
        {ENVIRONMENT: settings.TOOL_LOOP_VALUES} | {row.scope: stored_values(row.values) for row in rows},
        tuple(tool_rule(row) for row in rules),
    )


policy_cache = ProjectCache(lambda project: load_overrides(project.pk))
overrides_of = policy_cache.get
"""Return a project's overrides, from this process's cache."""


def tool_rule(row: ToolOverride) -> ToolRule:
    """Return a stored tool rule as the engine's value."""
    return ToolRule(
        pattern=row.pattern,
        tool_class=cast("ToolClass | None", row.tool_class or None),
        values=stored_values(row.values),
        ignore_arguments=tuple(row.ignore_arguments),
        volatile_result_fields=tuple(row.volatile_result_fields),
        exempt=row.exempt,
    )


def effective(
    project: Project,
    agent: str = "",
    backend: str = "",
    model: str = "",
    tool: str = "",
    session: Session | None = None,
) -> Policy:
    """Resolve what applies to a call, each setting with its source.

    Parameters
    ----------
    session
        Adds its own override, and its agent, backend and model where none is given.
    tool
        Empty: before a tool is considered.
    """
    values: Mapping[str, Any] = {}
    if session is not None:
        values = session.policy_values
        agent, backend, model = agent or session.agent, backend or session.backend, model or session.model
    policy = overrides_of(project).policy_for(agent, backend, model, values)
    return policy.for_tool(tool) if tool else policy
