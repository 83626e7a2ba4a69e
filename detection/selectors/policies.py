"""Effective settings: the stored overrides of a project, resolved for a call.

`policy_cache` keeps them in the process until a change raises the project's policy version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, cast

from django.conf import settings
from django.db.models import Q

from detection.engine.policy import Policy, ScopedValues, ToolRule, Top, resolve, stored_values
from detection.engine.scopes import ENVIRONMENT, SERVER, SESSION, TAG_PREFIX, TOP_SESSION, Scope
from detection.engine.tool_classes import ToolClass
from detection.models import (
    AgentTags,
    Override,
    Project,
    Session,
    StoredSettings,
    StoredSettingsQuerySet,
    ToolOverride,
)
from detection.selectors.ancestors import top_of
from detection.selectors.project_cache import ProjectCache

MAX_RESOLVED = 2000
_AGENT_RANK = Scope("agent", "any").rank


@dataclass(slots=True)
class ProjectOverrides:
    """The overrides and tool rules that apply to a project at one policy version, and policies resolved from them.

    Attributes
    ----------
    tags_of_agents
        The tags of the agents that have any: an override of the scope ``agent:tag:<tag>`` applies to all with the tag.
    """

    values: Mapping[Scope, Mapping[str, Any]]
    tool_rules: tuple[ToolRule, ...]
    tags_of_agents: Mapping[str, Sequence[str]]
    valid_until: float = inf
    """Unix time at which the next temporary one expires."""
    _resolved: OrderedDict[tuple[str, ...], Policy] = field(default_factory=OrderedDict)

    def policy_for(
        self,
        agent: str,
        backend: str,
        model: str,
        session_values: Mapping[str, Any],
        top: Top | None = None,
    ) -> Policy:
        """Resolve the policy of a session, before a tool is considered; costs a dictionary look-up once it is known.

        `top` is what a sub-agent inherits, between the project and its own agent.
        """
        key: tuple[str, ...] = (agent, backend, model, repr(session_values) if session_values else "")
        if top is not None:
            key = (*key, top.agent, repr(top.values))
        known = self._resolved.get(key)
        if known is not None:
            return known
        # An event may name a model without a backend; no override applies to that.
        scope = Scope("session", agent, backend, model)
        below = self.below(scope)
        if top is not None:
            wider = sum(1 for one, _ in below if one.rank < TOP_SESSION.rank)
            below[wider:wider] = [*self._of_agent(top.agent), (TOP_SESSION, stored_values(top.values))]
        resolved = resolve([*below, (SESSION, stored_values(session_values))], self.tool_rules)
        if len(self._resolved) >= MAX_RESOLVED:
            self._resolved.popitem(last=False)
        self._resolved[key] = resolved
        return resolved

    def below(self, scope: Scope) -> list[ScopedValues]:
        """List the overrides that a scope inherits, widest first; those of an agent's tags come before its own."""
        wider = scope.below()
        place = sum(1 for one in wider if one.rank < _AGENT_RANK)
        return self._stored((*wider[:place], *self._tag_scopes(scope.agent), *wider[place:]))

    def _of_agent(self, agent: str) -> list[ScopedValues]:
        return self._stored((*self._tag_scopes(agent), Scope("agent", agent))) if agent else []

    def _tag_scopes(self, agent: str) -> list[Scope]:
        return [Scope("agent", f"{TAG_PREFIX}{tag}") for tag in sorted(self.tags_of_agents.get(agent, ()))]

    def _stored(self, scopes: Iterable[Scope]) -> list[ScopedValues]:
        return [(one, self.values[one]) for one in scopes if one in self.values]

    def inherited(self, scope: Scope, own: Mapping[str, Any]) -> Policy:
        """Resolve the values that a scope would inherit: its own preset applies, all else comes from wider scopes."""
        outside = resolve(self.below(scope))
        if "preset" not in own:
            return outside
        inside = resolve([*self.below(scope), (scope, {"preset": own["preset"]})])
        return Policy(
            {**inside.values, "preset": outside.values["preset"]},
            {**inside.sources, "preset": outside.sources["preset"]},
        )


def model_of(scope: Scope) -> type[Override] | type[ToolOverride]:
    """Return the model of a scope's rows."""
    return ToolOverride if scope.kind == "tool" else Override


def rows_at(project_id: int | None, scope: Scope) -> StoredSettingsQuerySet[StoredSettings]:
    """Return the permanent and the temporary row of a scope; `in_effect` keeps the one that applies."""
    model = model_of(scope)
    names: dict[str, object] = {name: getattr(scope, name) for name in model.scope_fields}
    names["project_id"] = None if scope == SERVER else project_id
    return model.objects.filter(**names)


def stored_rows(project_id: int) -> dict[Scope, StoredSettings]:
    """Return the overrides and tool rules that apply to a project, with the server's, by scope; two queries."""
    overrides = Override.objects.filter(Q(project_id=project_id) | Q(project=None)).in_effect()
    rules = ToolOverride.objects.filter(project_id=project_id).in_effect()
    return {row.scope: row for row in (*overrides, *rules)}


def load_overrides(project_id: int | None) -> ProjectOverrides:
    """Read the overrides that apply to a project, or with None only those of every project; three queries."""
    own = Q(project_id=project_id)
    rows = [*Override.objects.filter(own | Q(project=None)).in_effect()]
    rules = [] if project_id is None else [*ToolOverride.objects.filter(own).in_effect()]
    values = {row.scope: stored_values(row.values) for row in rows}
    return ProjectOverrides(
        {ENVIRONMENT: settings.TOOL_LOOP_VALUES} | {scope: own for scope, own in values.items() if own},
        tuple(tool_rule(rule) for rule in rules),
        _tags_of_agents(project_id),
        min((row.expires_at.timestamp() for row in (*rows, *rules) if row.expires_at), default=inf),
    )


def _tags_of_agents(project_id: int | None) -> dict[str, Sequence[str]]:
    if project_id is None:
        return {}
    return dict(AgentTags.objects.filter(project_id=project_id).values_list("agent", "tags"))


policy_cache = ProjectCache(
    lambda project: load_overrides(project.pk), valid_until=lambda stored: stored.valid_until
)
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
    top = None
    if session is not None:
        top = top_of(session)
        values = session.policy_values
        agent, backend, model = agent or session.agent, backend or session.backend, model or session.model
    policy = overrides_of(project).policy_for(agent, backend, model, values, top)
    return policy.for_tool(tool) if tool else policy
