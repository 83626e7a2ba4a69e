"""Which settings hold for a call, and which tier each of them came from.

Tiers are laid over one another field by field. Storing tiers belongs to the services, the list of settings to `fields`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from detection.engine.fields import DEFAULTS, FIELDS, KINDS, LADDERS, Field, PolicyError, relevant_fields
from detection.engine.memory import MAX_RECORDS, MIN_RECORDS
from detection.engine.presets import PRESETS
from detection.engine.tool_classes import PLAIN_TOOL, TOOL_CLASSES, ToolClass, ToolTraits, shipped_traits

__all__ = [
    "ENVIRONMENT_VARIABLES",
    "FIELDS",
    "KINDS",
    "LADDERS",
    "PRESETS",
    "Field",
    "Policy",
    "PolicyError",
    "ToolRule",
    "environment",
    "relevant_fields",
    "resolve",
    "resolve_for_tool",
    "validate",
]

Tier = tuple[str, Mapping[str, Any]]

DEFAULT_PRESET = "standard"
_MAX_CACHED_TOOLS = 512


@dataclass(frozen=True, slots=True)
class ToolRule:
    """Settings for the tools whose name matches a glob.

    Parameters
    ----------
    pattern : str
        Glob on the tool name, such as `search_*`; case counts.
    tool_class : str or None
        One of `toolclasses.TOOL_CLASSES`; None keeps the shipped class.
    values : mapping
        Settings for these tools.
    ignore_arguments : tuple of str
        Dotted argument paths that do not count.
    volatile_result_fields : tuple of str
        Names of result fields that change without meaning.
    exempt : bool
        Never judged, never in the way of judging others.
    """

    pattern: str
    tool_class: ToolClass | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    ignore_arguments: tuple[str, ...] = ()
    volatile_result_fields: tuple[str, ...] = ()
    exempt: bool = False

    def __post_init__(self) -> None:
        if self.tool_class is not None and self.tool_class not in TOOL_CLASSES:
            raise PolicyError("tool_class", f"must be one of {', '.join(TOOL_CLASSES)}")


class Policy:
    """Resolved settings; never changes after it was made.

    Attributes
    ----------
    values : mapping
        Every field of `FIELDS` with the value that holds.
    sources : mapping
        The tier of each: `preset:standard`, `environment`, `server`, `project`, `backend:…`, `model:…`, `tool:…`, `session`.
    traits : ToolTraits
        What is known about the tool, after `for_tool`.
    memory_calls : int
        How many calls these settings make a session remember.
    plans : dict
        A place where the fold keeps what it has worked out from these settings.
    """

    __slots__ = ("_by_tool", "_rules", "_tiers", "memory_calls", "plans", "sources", "traits", "values")

    def __init__(
        self,
        values: Mapping[str, Any],
        sources: Mapping[str, str],
        tiers: Sequence[Tier] = (),
        rules: Sequence[ToolRule] = (),
        traits: ToolTraits = PLAIN_TOOL,
    ) -> None:
        self.values = values
        self.sources = sources
        self.traits = traits
        self.plans: dict[str, Any] = {}
        self.memory_calls = _memory_calls(values)
        self._tiers = tuple(tiers)
        self._rules = tuple(rules)
        self._by_tool: dict[str, Policy] = {}

    def get(self, name: str) -> Any:
        """The value that holds for a field; KeyError for an unknown one."""
        return self.values[name]

    def explain(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """`{name: {"value": …, "source": …}}`, ready for JSON."""
        return {
            name: {
                "value": list(value) if isinstance(value := self.values[name], tuple) else value,
                "source": self.sources[name],
            }
            for name in names
        }

    def for_tool(self, tool: str) -> Policy:
        """The policy as it holds for a tool; answers come from a small cache."""
        found = self._by_tool.get(tool)
        if found is None:
            if len(self._by_tool) >= _MAX_CACHED_TOOLS:
                self._by_tool.clear()
            found = self._by_tool[tool] = _for_tool(self, tool)
        return found


def _memory_calls(values: Mapping[str, Any]) -> int:
    """How many calls a session must remember for these settings; never fewer than a wide parallel round."""
    laps = max(values["cycle_min_laps"], values["cycle_unknown_laps"]) if values["cycle_enabled"] else 0
    needed = (
        MIN_RECORDS,
        values["window_calls"] + 1 if values["repeat_scope"] == "window" else 0,
        values["scattered_window_calls"] if values["result_aware"] else 0,
        values["similar_window_calls"] + 1 if values["similar_enabled"] else 0,
        values["cycle_max_length"] * laps + 1,
    )
    return min(int(max(needed)), MAX_RECORDS)


def _for_tool(policy: Policy, tool: str) -> Policy:
    traits = shipped_traits(tool)
    own: list[Tier] = []
    for rule in policy._rules:
        if fnmatchcase(tool, rule.pattern):
            own.append((f"tool:{rule.pattern}", rule.values))
            traits = traits.with_rule(
                rule.tool_class, rule.ignore_arguments, rule.volatile_result_fields, exempt=rule.exempt
            )
    if not any(values for _, values in own):
        return Policy(policy.values, policy.sources, policy._tiers, policy._rules, traits)
    # Tool rules lie above everything but the session's own settings.
    below = [tier for tier in policy._tiers if tier[0] != "session"]
    above = [tier for tier in policy._tiers if tier[0] == "session"]
    merged = resolve([*below, *own, *above])
    return Policy(merged.values, merged.sources, policy._tiers, policy._rules, traits)


def resolve(tiers: Sequence[Tier], rules: Sequence[ToolRule] = ()) -> Policy:
    """Lay tiers over one another, field by field.

    Parameters
    ----------
    tiers : sequence of (source, values)
        Lowest first. None as a value means "inherit". A tier may name a `preset`; the highest one that does decides,
        and the preset's fields lie below every tier.
    rules : sequence of ToolRule
        Lowest first; see `Policy.for_tool`.

    Returns
    -------
    Policy
        With a source for every field.

    Raises
    ------
    PolicyError
        For an unknown field or a value that is not allowed.
    """
    cleaned = [(source, validate(values)) for source, values in tiers]
    preset, preset_source = DEFAULT_PRESET, f"preset:{DEFAULT_PRESET}"
    for source, values in cleaned:
        if "preset" in values:
            preset, preset_source = values["preset"], source
    values = {**DEFAULTS, **PRESETS[preset]}
    sources = dict.fromkeys(FIELDS, f"preset:{preset}")
    for source, own in cleaned:
        values.update(own)
        sources.update(dict.fromkeys(own, source))
    values["preset"], sources["preset"] = preset, preset_source
    return Policy(values, sources, cleaned, rules)


def resolve_for_tool(policy: Policy, tool: str, rules: Sequence[ToolRule] | None = None) -> Policy:
    """`policy` as it holds for one tool, under its own tool rules or the ones given."""
    return (
        policy.for_tool(tool)
        if rules is None
        else _for_tool(Policy(policy.values, policy.sources, policy._tiers, rules), tool)
    )


def validate(values: Mapping[str, Any]) -> dict[str, Any]:
    """Cleaned copy of a tier: known fields, allowed values, None (inherit) left out.

    Raises
    ------
    PolicyError
        Naming the first field that is wrong.
    """
    cleaned: dict[str, Any] = {}
    for name, value in values.items():
        known = FIELDS.get(name)
        if known is None:
            raise PolicyError(str(name), "is not a setting")
        if value is not None:
            cleaned[name] = known.clean(value)
    if cleaned.get("cycle_min_length", 0) > cleaned.get("cycle_max_length", 99):
        raise PolicyError("cycle_min_length", "must not be greater than cycle_max_length")
    return cleaned


ENVIRONMENT_VARIABLES: Mapping[str, str] = {
    "TOOL_LOOP_DETECTION_ENABLED": "enabled",
    "TOOL_LOOP_MAX_REPEATS": "max_repeats",
    "TOOL_LOOP_TTL_SECONDS": "ttl_seconds",
    "TOOL_LOOP_MODE": "mode",
}


def environment(env: Mapping[str, str], *, lenient: bool = False) -> dict[str, Any]:
    """The lowest tier, from `TOOL_LOOP_*` variables.

    Parameters
    ----------
    env : mapping
        Such as `os.environ`; other variables are not looked at.
    lenient : bool
        Leave out what cannot be read, as the original did, instead of refusing to start.

    Raises
    ------
    PolicyError
        Naming the variable, unless `lenient`.
    """
    values: dict[str, Any] = {}
    for variable, name in ENVIRONMENT_VARIABLES.items():
        text = env.get(variable, "").strip()
        if not text:
            continue
        try:
            values[name] = FIELDS[name].clean(text)
        except PolicyError as error:
            if not lenient:
                raise PolicyError(variable, error.message) from None
    return values
