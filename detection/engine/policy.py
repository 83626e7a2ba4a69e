"""Resolve the settings of a call from overrides, each with the scope that it comes from.

Overrides are checked once, by `validate`, where they enter. Storing them belongs to the services, the list of settings
to `fields`, the order of scopes to `scopes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypedDict

from detection.engine.detectors import DETECTORS
from detection.engine.dispatching import inner, outer
from detection.engine.errors import PolicyError
from detection.engine.fields import (
    ALIASES,
    DEFAULTS,
    FIELDS,
    LADDERS,
    SETTING_OF_NAME,
    Field,
    relevant_fields,
)
from detection.engine.memory import MAX_RECORDS, MIN_RECORDS
from detection.engine.presets import PRESETS
from detection.engine.scopes import ENVIRONMENT, PROJECT, SERVER, SESSION, Scope
from detection.engine.tool_classes import PLAIN_TOOL, TOOL_CLASSES, ToolClass, ToolTraits, shipped_traits

__all__ = [
    "ENVIRONMENT",
    "FIELDS",
    "LADDERS",
    "PRESETS",
    "PROJECT",
    "SERVER",
    "SESSION",
    "Field",
    "Policy",
    "PolicyError",
    "Scope",
    "ToolRule",
    "Top",
    "environment_override",
    "environment_variables",
    "layers",
    "relevant_fields",
    "resolve",
    "stored_values",
    "validate",
]

ScopedValues = tuple[Scope, Mapping[str, Any]]
"""An override: values at a scope, as `validate` returned them. A setting that is absent is inherited."""

DEFAULT_PRESET = "standard"
# Agents have tens of tools, and names without end are an attack; a judgement for the memory of a process.
_MAX_CACHED_TOOLS = 512
_SESSION_WIDE = tuple(name for name, field in FIELDS.items() if "tool" not in field.scopes)


@dataclass(frozen=True, slots=True)
class ToolRule:
    """Settings and facts for the tools whose name matches a glob.

    Parameters
    ----------
    pattern : str
        Glob on the tool name, such as `search_*`; case-sensitive.
    tool_class : str or None
        One of `tool_classes.TOOL_CLASSES`; None keeps the shipped class.
    values : mapping
        Settings for these tools, as `validate` returned them.
    ignore_arguments : tuple of str
        Dotted argument paths that do not count.
    volatile_result_fields : tuple of str
        Names of result fields that change without meaning.
    exempt : bool
        Never evaluated, and ignored when other tools are.
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

    @property
    def scope(self) -> Scope:
        """The scope of the tools."""
        return Scope("tool", pattern=self.pattern)


class Top(NamedTuple):
    """What the session at the top of a tree hands down to its sub-agents: the overrides of its agent, and its own."""

    agent: str
    values: Mapping[str, Any]


class KeptSetting(NamedTuple):
    """A setting that does not have the value of the preset, and where its value comes from."""

    setting: str
    value: Any
    source: str


class ExplainedSetting(TypedDict, total=False):
    """A setting of a policy as JSON: its value, and where that comes from."""

    value: Any
    source: str


class Policy:
    """Resolved settings; immutable.

    Attributes
    ----------
    values : mapping
        Every setting of `FIELDS` with its value.
    sources : mapping
        Where each value comes from: `preset:standard`, or the text of a `Scope`.
    traits : ToolTraits
        Facts about the tool, after `for_tool`.
    memory_calls : int
        How many calls a session remembers under these settings.
    has_tool_settings : bool
        Whether tool rules change settings, so that `for_tool` can differ from these.
    plans : dict
        A cache of what the fold derives from these settings.
    reads_plainly : bool
        Whether results are read as known systems read them: without regard to what they repeat of their calls, to what
        hosts add, and to failures that are not called so. It goes with every setting that counts or compares literally.
    """

    __slots__ = (
        "_as_poll", "_by_tool", "_overrides", "_rules", "has_tool_settings", "memory_calls", "plans", "reads_plainly",
        "sources", "traits", "values",
    )  # fmt: skip

    def __init__(
        self,
        values: Mapping[str, Any],
        sources: Mapping[str, str],
        overrides: Sequence[ScopedValues] = (),
        rules: Sequence[ToolRule] = (),
        traits: ToolTraits = PLAIN_TOOL,
    ) -> None:
        self.values = values
        self.sources = sources
        self.traits = traits
        self.plans: dict[str, tuple[Any, ...]] = {}
        self.memory_calls = _memory_calls(values)
        self.reads_plainly = _reads_plainly(values)
        self.has_tool_settings = any(rule.values for rule in rules)
        self._overrides = tuple(overrides)
        self._rules = tuple(rules)
        self._by_tool: dict[str, Policy] = {}
        self._as_poll: Policy | None = None

    def get(self, name: str) -> Any:
        """Return the value of a setting; KeyError for an unknown one."""
        return self.values[name]

    def explain(self, names: Iterable[str]) -> dict[str, ExplainedSetting]:
        """Return `{name: {"value": …, "source": …}}`, ready for JSON."""
        return {
            name: {
                "value": list(value) if isinstance(value := self.values[name], tuple) else value,
                "source": self.sources[name],
            }
            for name in names
        }

    def for_tool(self, tool: str) -> Policy:
        """Return the policy of one tool, from a small cache."""
        found = self._by_tool.get(tool)
        if found is None:
            if len(self._by_tool) >= _MAX_CACHED_TOOLS:
                self._by_tool.clear()
            found = self._by_tool[tool] = _for_tool(self, tool)
        return found

    def kept_over_preset(self) -> tuple[KeptSetting, ...]:
        """Return the settings that do not have the value of the preset, because a scope or a tool rule sets another.

        Each setting is resolved alone, so values of wider scopes stay when a narrower one chooses a preset.
        """
        preset = {**DEFAULTS, **PRESETS[self.values["preset"]]}
        own = [
            KeptSetting(name, value, self.sources[name])
            for name, value in self.values.items()
            if self.sources[name].partition(":")[0] != "preset"
        ]
        of_tools = [
            KeptSetting(name, value, str(rule.scope))
            for rule in self._rules
            for name, value in rule.values.items()
            if self.sources.get(name) != SESSION.kind
        ]
        return tuple(
            one
            for one in (*own, *of_tools)
            # What no session can set is no part of the choice.
            if one.value != preset[one.setting]
            and one.setting != "preset"
            and SESSION.kind in FIELDS[one.setting].scopes
        )

    def with_values(self, scope: Scope, values: Mapping[str, Any]) -> Policy:
        """Return these settings with others at a scope, in addition to those that are set there."""
        below = [one for one in self._overrides if one[0].rank <= scope.rank]
        above = [one for one in self._overrides if one[0].rank > scope.rank]
        return resolve([*below, (scope, validate(scope, values)), *above], self._rules)

    def as_poll(self) -> Policy:
        """Return the policy of one tool for a call that only asks for a state."""
        if self.traits.tool_class == "poll":
            return self
        if self._as_poll is None:
            traits = replace(self.traits, tool_class="poll")
            self._as_poll = Policy(self.values, self.sources, self._overrides, self._rules, traits)
        return self._as_poll


def _reads_plainly(values: Mapping[str, Any]) -> bool:
    return not (
        values["result_aware"]
        and values["once_per_round"]
        and values["identity"] != "raw"
        and values["outcome_method"] == "fingerprint"
        and values["similar_method"] != "literal"
    )


def _memory_calls(values: Mapping[str, Any]) -> int:
    """Return how many calls a session remembers under these settings; never fewer than a wide parallel round."""
    needed = max(detector.memory_calls(values) for detector in DETECTORS)
    return min(max(MIN_RECORDS, needed), MAX_RECORDS)


def _for_tool(policy: Policy, tool: str) -> Policy:
    rules, shipped = _rules_of(policy, tool)
    traits = shipped_traits(shipped)
    for rule in rules:
        traits = traits.with_rule(
            rule.tool_class, rule.ignore_arguments, rule.volatile_result_fields, exempt=rule.exempt
        )
    values, sources = policy.values, policy.sources
    own = [(rule.scope, rule.values) for rule in rules if rule.values]
    if own:
        merged = resolve(_with_rules(policy, own))
        values = {**merged.values, **{name: values[name] for name in _SESSION_WIDE}}
        sources = {**merged.sources, **{name: sources[name] for name in _SESSION_WIDE}}
    return Policy(values, sources, policy._overrides, policy._rules, traits)


def _rules_of(policy: Policy, tool: str) -> tuple[list[ToolRule], str]:
    """Return the rules of a tool, lowest first, and the name whose shipped traits it has."""
    names = [outer(tool)]
    if not policy.reads_plainly and tool != names[0]:
        # What is said about a tool that dispatches holds for what it dispatches, unless that has a rule of its own.
        names += [tool, inner(tool)]
    rules = [rule for rule in policy._rules if fnmatchcase(names[0], rule.pattern)]
    rules += [
        rule
        for rule in policy._rules
        if rule not in rules and any(fnmatchcase(name, rule.pattern) for name in names[1:])
    ]
    return rules, names[-1]


def _with_rules(policy: Policy, rules: Sequence[ScopedValues]) -> list[ScopedValues]:
    """Return the overrides of a policy with those of tool rules, widest first."""
    rank = Scope("tool", pattern="*").rank
    below = [one for one in policy._overrides if one[0].rank < rank]
    above = [one for one in policy._overrides if one[0].rank > rank]
    return [*below, *rules, *above]


def layers(policy: Policy, name: str, tool: str = "") -> tuple[KeptSetting, ...]:
    """Return every value that a setting has for calls of a tool, weakest first; the last one applies.

    Parameters
    ----------
    policy : Policy
        Of a session or of names, before a tool is considered.
    name : str
        The setting; KeyError for an unknown one.
    tool : str
        Empty: before a tool is considered.

    Returns
    -------
    tuple of KeptSetting
        At first the value of the preset that applies. Costs as much as resolving the policy of a tool.
    """
    chosen = policy.for_tool(tool) if tool else policy
    preset = DEFAULT_PRESET if name == "preset" else chosen.values["preset"]
    first = KeptSetting(name, {**DEFAULTS, **PRESETS[preset]}[name], f"preset:{preset}")
    rules = _rules_of(policy, tool)[0] if tool and name not in _SESSION_WIDE else []
    scoped = _with_rules(policy, [(rule.scope, rule.values) for rule in rules])
    return first, *(KeptSetting(name, own[name], str(scope)) for scope, own in scoped if name in own)


def resolve(overrides: Iterable[ScopedValues], rules: Sequence[ToolRule] = ()) -> Policy:
    """Apply overrides to the defaults, setting by setting.

    Parameters
    ----------
    overrides : iterable of (Scope, mapping)
        Widest scope first; values as `validate` returned them. The last `preset` among them decides, and the values of
        the preset lie below every override.
    rules : sequence of ToolRule
        Lowest first; see `Policy.for_tool`.

    Returns
    -------
    Policy
        With a source for every setting. Costs tens of microseconds.
    """
    overrides = tuple(overrides)
    preset, preset_source = DEFAULT_PRESET, f"preset:{DEFAULT_PRESET}"
    for scope, own in overrides:
        if "preset" in own:
            preset, preset_source = own["preset"], str(scope)
    values = {**DEFAULTS, **PRESETS[preset]}
    sources = dict.fromkeys(FIELDS, f"preset:{preset}")
    for scope, own in overrides:
        values.update(own)
        sources.update(dict.fromkeys(own, str(scope)))
    sources["preset"] = preset_source
    return Policy(values, sources, overrides, rules)


def validate(scope: Scope, values: Mapping[str, Any]) -> dict[str, object]:
    """Check an override: the names of its scope, which settings it may contain, and their values.

    Parameters
    ----------
    scope : Scope
        Where the values apply.
    values : mapping
        By setting or alias; text is read as the type of the setting. None means inherited.

    Returns
    -------
    dict
        Canonical values by setting, without those that are inherited.

    Raises
    ------
    PolicyError
        Naming the first setting that is wrong; the errors of other settings are its `others`.
    """
    scope.check_names()
    cleaned: dict[str, object] = {}
    errors: list[PolicyError] = []
    for given, value in values.items():
        try:
            name, own = _clean(scope, given, value)
            if name in cleaned:
                raise PolicyError(name, "is given twice, under two of its names")
            if own is not None:
                cleaned[name] = own
        except PolicyError as error:
            errors.append(error)
    for detector in DETECTORS:
        try:
            detector.validate(cleaned)
        except PolicyError as error:
            errors.append(error)
    if errors:
        first = errors[0]
        raise PolicyError(first.field, first.message, tuple(errors[1:]))
    return cleaned


def _clean(scope: Scope, given: str, value: Any) -> tuple[str, Any]:
    name = ALIASES.get(given, given)
    field = FIELDS.get(name)
    if field is None:
        raise PolicyError(str(given)[:100], "is not a setting")
    if scope.kind not in field.scopes:
        allowed = ", ".join(field.scopes)
        raise PolicyError(name, f"cannot be set for the scope {scope.kind}, only for {allowed}")
    return name, None if value is None else field.clean(value)


def _nearest_variable(name: str, variables: Mapping[str, str]) -> str:
    """Return the variable that was probably meant: that of a setting with this name elsewhere, or a similar one."""
    bare = name.removeprefix(_VARIABLE_PREFIX)
    meant = SETTING_OF_NAME.get(bare.lower().replace("_", "-"))
    for variable, setting in variables.items():
        if setting == meant:
            return variable
    # The prefix that all of them share would make any two of them similar.
    close = get_close_matches(bare, [one.removeprefix(_VARIABLE_PREFIX) for one in variables], 1)
    return _VARIABLE_PREFIX + close[0] if close else ""


def stored_values(values: Mapping[str, Any]) -> dict[str, object]:
    """Return the values of an override as JSON gave them back: lists become tuples, unknown settings are dropped."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in FIELDS
    }


_VARIABLE_PREFIX = "TOOL_LOOP_"


def environment_variables() -> dict[str, str]:
    """Return the setting of each environment variable, in the order of `FIELDS`."""
    return {
        _VARIABLE_PREFIX + ("DETECTION_ENABLED" if name == "enabled" else name.upper()): name
        for name, field in FIELDS.items()
        # What the environment alone may contain is set by the server.
        if SERVER.kind in field.scopes
    }


def environment_override(env: Mapping[str, str]) -> dict[str, object]:
    """Read the override of the environment from the variables that start with `TOOL_LOOP_`.

    Parameters
    ----------
    env : mapping
        Such as `os.environ`; other variables are ignored, and so are empty ones.

    Raises
    ------
    PolicyError
        Naming the variable, for a value that is not allowed or a variable that is no setting's.
    """
    variables = environment_variables()
    given = {name: text for name, text in env.items() if name.startswith(_VARIABLE_PREFIX) and text.strip()}
    for name in sorted(given.keys() - variables.keys()):
        nearest = _nearest_variable(name, variables)
        hint = f"; the nearest is `{nearest}`" if nearest else ""
        raise PolicyError(name, f"is no setting's variable{hint}")
    try:
        return validate(ENVIRONMENT, {variables[name]: text.strip() for name, text in given.items()})
    except PolicyError as error:
        named = {setting: name for name, setting in variables.items()}
        raise PolicyError(named[error.field], error.message) from None
