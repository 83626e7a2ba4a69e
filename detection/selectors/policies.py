"""Which settings hold: loads the stored tiers of a project and resolves them for a call.

Rows are kept in the process as long as the project's policy version stands, and the version is read with every session
lock, so a saved change holds for the next call on every process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, cast

from django.conf import settings
from django.db.models import Q

from detection.engine import policy
from detection.engine.policy import Policy
from detection.engine.policy import ToolRule as EngineToolRule
from detection.engine.tool_classes import ToolClass
from detection.models import PolicyTier, Project, Session, ToolRule

MAX_PROJECTS, MAX_RESOLVED = 200, 2000


@dataclass(slots=True)
class Tiers:
    """The stored tiers of one project at one version, and what was resolved from them so far."""

    version: int
    by_place: dict[tuple[str, str, str], tuple[str, dict[str, Any]]]
    tool_rules: tuple[EngineToolRule, ...]
    _resolved: OrderedDict[tuple[Any, ...], Policy] = field(default_factory=OrderedDict)

    def policy_for(self, backend: str, model: str, session_values: dict[str, Any]) -> Policy:
        """Resolve everything but the tool: environment, server, project, backend, backend+model, session."""
        key = (backend, model, tuple(sorted((name, str(value)) for name, value in session_values.items())))
        known = self._resolved.get(key)
        if known is not None:
            return known
        resolved = policy.resolve(self.stack(backend, model, session_values), self.tool_rules)
        if len(self._resolved) >= MAX_RESOLVED:
            self._resolved.popitem(last=False)
        self._resolved[key] = resolved
        return resolved

    def stack(
        self, backend: str, model: str, session_values: dict[str, Any]
    ) -> list[tuple[str, dict[str, Any]]]:
        """List the tiers that hold here, the widest first, each as (source, values)."""
        places = [("server", "", ""), ("project", "", "")]
        if backend:
            places.append(("backend", backend, ""))
            if model:
                places.append(("model", backend, model))
        stored = [self.by_place[place] for place in places if place in self.by_place]
        return [("environment", settings.TOOL_LOOP_VALUES), *stored, ("session", session_values)]


_cache: OrderedDict[int, Tiers] = OrderedDict()
_lock = threading.Lock()


def tiers_of(project_id: int, version: int) -> Tiers:
    """Return the project's tiers at `version`; two queries when the process does not know them yet."""
    known = _cache.get(project_id)
    if known is not None and known.version == version:
        return known
    rows = PolicyTier.objects.filter(Q(project_id=project_id) | Q(project=None))
    tiers = Tiers(
        version,
        {(row.scope, row.backend, row.model): (row.source, row.values) for row in rows if row.values},
        tuple(engine_rule(rule) for rule in ToolRule.objects.filter(project_id=project_id)),
    )
    with _lock:
        _cache[project_id] = tiers
        _cache.move_to_end(project_id)
        if len(_cache) > MAX_PROJECTS:
            _cache.popitem(last=False)
    return tiers


def engine_rule(rule: ToolRule) -> EngineToolRule:
    """Turn a stored rule into the engine's."""
    return EngineToolRule(
        pattern=rule.pattern,
        tool_class=cast("ToolClass | None", rule.tool_class or None),
        values=rule.values,
        ignore_arguments=tuple(rule.ignore_arguments),
        volatile_result_fields=tuple(rule.volatile_result_fields),
        exempt=rule.exempt,
    )


def effective(
    project: Project, backend: str = "", model: str = "", tool: str = "", session: Session | None = None
) -> Policy:
    """Resolve what would hold for a call here, each field with its source.

    Parameters
    ----------
    session
        Its own settings count, and its backend and model where none is given.
    tool
        Empty: before any tool is looked at.
    """
    own = session.policy_values if session else {}
    backend, model = (
        backend or (session.backend if session else ""),
        model or (session.model if session else ""),
    )
    found = tiers_of(project.pk, project.policy_version).policy_for(backend, model, own)
    return found.for_tool(tool) if tool else found
