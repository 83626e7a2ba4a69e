"""The list of settings. Forms, API schemas, admin, docs and the chat commands are generated from it.

A setting is described once. What a setting is belongs to `field`, resolving several tiers to `policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from detection.engine.detector_fields import DETECTOR_FIELDS
from detection.engine.field import (
    KINDS,
    LADDER_ALIASES,
    LADDERS,
    MAX_LADDER_RUNGS,
    RUNGS,
    Field,
    FieldType,
    PolicyError,
    choice,
    count,
    ladder,
    switch,
)

__all__ = [
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

_ALL = (
    switch(
        "enabled",
        True,
        "Detection",
        "Off means that nothing is tracked and no state is written.",
        "general",
        weakens="off",
        aliases=("detection", "detection_enabled"),
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
        aliases=("count_batch_once",),
    ),
    switch(
        "attended",
        False,
        "Someone is attending",
        "A user message then starts all counting anew.",
        "general",
        weakens="on",
    ),
    switch(
        "judge_available",
        False,
        "Judge available",
        "Set by the server when a judge endpoint is configured.",
        "general",
    ),
    # Reactions
    ladder("mode", "break", "Reaction to repeats", "reactions", aliases=("repeat_ladder",)),
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

DEFAULTS: Mapping[str, Any] = MappingProxyType({field.name: field.default for field in _ALL})

_COMMON = ("enabled", "preset", "counting_scope", "escalation_scope", "rung_gap_calls")


def relevant_fields(kind: str) -> tuple[str, ...]:
    """Names of the settings that explain a finding of this kind, the reaction first."""
    own = tuple(name for name, field in FIELDS.items() if field.group == kind)
    return (*(("mode",) if kind == "repeat" else ()), *own, *_COMMON)
