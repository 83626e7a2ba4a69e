"""The list of settings. Forms, API schemas, admin, docs, environment variables and chat commands are generated from it.

A setting is described once. The type `Field` belongs to `field`, resolving overrides to `policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from detection.engine.detector_fields import DETECTOR_FIELDS
from detection.engine.errors import PolicyError
from detection.engine.field import (
    KINDS,
    LADDER_ALIASES,
    LADDERS,
    MAX_LADDER_RUNGS,
    RUNGS,
    Field,
    FieldType,
    choice,
    count,
    ladder,
    switch,
)
from detection.engine.scopes import SCOPE_KINDS

__all__ = [
    "ALIASES",
    "DEFAULTS",
    "FIELDS",
    "KINDS",
    "LADDERS",
    "LADDER_ALIASES",
    "MAX_LADDER_RUNGS",
    "PRESET_NAMES",
    "RUNGS",
    "Field",
    "FieldType",
    "PolicyError",
    "relevant_fields",
]

PRESET_NAMES = (
    "standard",
    "proxy",
    "balanced",
    "conservative",
    "aggressive",
    "similarity",
    "advisory",
    "interactive",
    "justified",
    "observe",
)

_NOT_OF_TOOLS = tuple(kind for kind in SCOPE_KINDS if kind != "tool")
"""For settings of the whole session, which cannot differ from tool to tool."""

_ALL = (
    switch(
        "enabled",
        True,
        "Detection",
        "Off means that nothing is tracked and no state is written.",
        "general",
        weakens="off",
        aliases=("tool_loop_detection_enabled",),
    ),
    choice(
        "preset",
        "standard",
        PRESET_NAMES,
        "Preset",
        "The set of values that all other settings start from.",
        "general",
    ),
    choice(
        "counting_scope",
        "run",
        ("run", "session"),
        "Counting scope",
        "Whether counting starts anew with each run of a session.",
        "general",
        scopes=_NOT_OF_TOOLS,
    ),
    choice(
        "identity",
        "canonical",
        ("canonical", "raw"),
        "Call identity",
        "Compare arguments as sorted JSON, or exactly as received.",
        "general",
    ),
    switch(
        "once_per_round",
        True,
        "Count a round once",
        "Identical calls inside one model response are one observation.",
        "general",
        weakens="on",
    ),
    switch(
        "attended",
        False,
        "Someone is attending",
        "A user message then starts all counting anew.",
        "general",
        weakens="on",
        scopes=_NOT_OF_TOOLS,
    ),
    switch(
        "judge_available",
        False,
        "Judge available",
        "Set by the server when a judge endpoint is configured.",
        "general",
        scopes=("environment",),
    ),
    # Reactions
    ladder("mode", "break", "Reaction to repeats", "reactions", aliases=("tool_loop_detection_mode",)),
    Field(
        "graduated_rungs",
        "ladder",
        ("warn", "warn", "stop"),
        "Rungs of graduated",
        "The rungs behind the ladder named graduated.",
        group="reactions",
    ),
    choice(
        "escalation_scope",
        "loop",
        ("loop", "session"),
        "Escalation",
        "Count detections per loop, or over everything in the session.",
        "reactions",
    ),
    count(
        "rung_gap_calls",
        3,
        1,
        1000,
        "Calls between two rungs",
        "How many calls a warning has to work before the next rung.",
        "reactions",
    ),
    count(
        "escalation_decay_calls",
        20,
        0,
        100_000,
        "Forgiven after",
        "Calls without that loop after which its ladder starts over; 0 never.",
        "reactions",
        weakens="down",
    ),
    choice(
        "reset_after_detection",
        "none",
        ("none", "loop", "all"),
        "Reset after a detection",
        "What is forgotten once a detection was made.",
        "reactions",
    ),
    switch(
        "clear_on_stop",
        False,
        "Clear on stop",
        "A stop forgets the history and the escalation.",
        "reactions",
        weakens="on",
    ),
    count(
        "answer_timeout_seconds",
        120,
        1,
        86_400,
        "Time for an answer",
        "How long an approval waits for a person.",
        "reactions",
        unit="seconds",
        weakens=None,
    ),
    choice(
        "unattended_reaction",
        "block",
        ("block", "stop", "allow", "disable"),
        "Unanswered means",
        "What happens when nobody answers in time.",
        "reactions",
    ),
    *DETECTOR_FIELDS,
)

FIELDS: Mapping[str, Field] = MappingProxyType({field.name: field for field in _ALL})
"""Every setting by name, in the order in which people should see them."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {alias: field.name for field in _ALL for alias in field.aliases}
)
"""Further names of settings in overrides and commands, with the setting of each."""

DEFAULTS: Mapping[str, Any] = MappingProxyType({field.name: field.default for field in _ALL})

_COMMON = ("enabled", "preset", "counting_scope", "escalation_scope", "rung_gap_calls")


def relevant_fields(kind: str) -> tuple[str, ...]:
    """Names of the settings that explain a finding of this kind, the reaction first."""
    own = tuple(name for name, field in FIELDS.items() if field.group == kind)
    return (*(("mode",) if kind == "repeat" else ()), *own, *_COMMON)
