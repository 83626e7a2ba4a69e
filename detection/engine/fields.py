"""List of all settings: general ones, reactions, and those of every detector.

Forms, API schemas, admin, documentation, environment variables and chat commands are generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from detection.engine.detectors import BY_KIND, DETECTORS
from detection.engine.errors import PolicyError
from detection.engine.field import (
    LADDER_ALIASES,
    LADDERS,
    MAX_LADDER_RUNGS,
    NOT_OF_TOOLS,
    RUNGS,
    Field,
    FieldType,
    choice,
    ladder,
    number,
    switch,
)
from detection.engine.presets import PRESETS

__all__ = [
    "ALIASES",
    "DEFAULTS",
    "FIELDS",
    "LADDERS",
    "LADDER_ALIASES",
    "MAX_LADDER_RUNGS",
    "PRESET_NAMES",
    "RUNGS",
    "SETTING_OF_NAME",
    "TYPED_NAMES",
    "Field",
    "FieldType",
    "PolicyError",
    "relevant_fields",
]

PRESET_NAMES = tuple(PRESETS)

_ALL = (
    switch(
        "enabled",
        True,
        "Detection",
        "When off, nothing is tracked and no state is stored.",
        weakens="off",
        aliases=("tool_loop_detection_enabled",),
    ),
    choice(
        "preset",
        "standard",
        PRESET_NAMES,
        "Preset",
        "The values that all other settings start from.",
    ),
    choice(
        "counting_scope",
        "run",
        ("run", "session"),
        "Counting scope",
        "Count each run of a session by itself, or the whole session. Calls without a run are one run; see "
        "`message_begins_run`.",
        strictest_first=("session", "run"),
        scopes=NOT_OF_TOOLS,
    ),
    switch(
        "message_begins_run",
        False,
        "Messages begin runs",
        "With the counting scope `run`, a person's message begins a run where the client names none. When off, calls "
        "without a run are one run, in which a message lets reactions start over.",
        weakens="on",
        scopes=NOT_OF_TOOLS,
    ),
    choice(
        "identity",
        "canonical",
        ("canonical", "raw", "tool"),
        "Call identity",
        "Compare arguments as canonical JSON or exactly as received, or only the names of the tools.",
        strictest_first=("tool", "canonical", "raw"),
    ),
    switch(
        "once_per_round",
        True,
        "Count once per round",
        "Identical calls within one model response count once.",
        weakens="on",
    ),
    switch(
        "writes_once",
        False,
        "Run identical writes once",
        "Of identical calls within one model response that send or change something, only the first runs; the others "
        "are blocked and refer to its result. With `once_per_round` and `result_aware`, if the reaction to repeats "
        "blocks.",
        weakens="off",
    ),
    switch(
        "attended",
        False,
        "Attended session",
        "A person follows the session; each user message resets all counters.",
        weakens="on",
        scopes=NOT_OF_TOOLS,
    ),
    # As `max_repeats`; not measured, because recorded runs do not say who wrote.
    number(
        "program_repeats",
        4,
        2,
        20,
        "Identical prompts of programs",
        "In the gateway and in lists of messages, the n-th identical prompt in a row is a program's if each came "
        "within `program_seconds` of the answer.",
        weakens="up",
        scopes=NOT_OF_TOOLS,
    ),
    # A judgement, not measured: nobody reads an answer and writes the next prompt within three seconds.
    number(
        "program_seconds",
        3,
        0,
        3600,
        "Time in which programs answer",
        "How soon after an answer a program writes. A prompt that comes so soon after an answer that LoopGuard ended "
        "is a program's, too. 0 turns both off.",
        unit="seconds",
        weakens="down",
        scopes=NOT_OF_TOOLS,
    ),
    switch(
        "judge_available",
        False,
        "Judge available",
        "Set by the server if a judge endpoint is configured.",
        scopes=("environment",),
    ),
    switch(
        "judge_sees_request",
        False,
        "Judge sees the request",
        "Send the user's first message to the judge, in addition to the figures. Secrets are redacted.",
        scopes=("project",),
    ),
    Field(
        "judge_temperature",
        "float",
        0.0,
        "Temperature of the judge",
        "How much rulings on the same figures may vary: 0 means as little as the model allows.",
        minimum=0,
        maximum=2,
        zero_is_off=False,
        scopes=NOT_OF_TOOLS,
    ),
    # Reactions
    ladder("mode", "break", "Reaction to repeats", group="reactions", aliases=("tool_loop_detection_mode",)),
    Field(
        "graduated_rungs",
        "ladder",
        ("warn", "warn", "stop"),
        "Steps of the graduated reaction",
        "The reactions that `graduated` stands for, one after the other.",
        group="reactions",
    ),
    choice(
        "escalation_scope",
        "loop",
        ("loop", "session"),
        "Escalation scope",
        "Escalate each loop by itself, or all detections of the session together.",
        group="reactions",
        strictest_first=("session", "loop"),
    ),
    # On the 140 inspected runs, 2 saves 130 calls instead of 121, and 4 as many; a warning has time to work.
    number(
        "rung_gap_calls",
        3,
        1,
        1000,
        "Calls between steps",
        "How many calls a warning has time to work before the next reaction.",
        group="reactions",
    ),
    # A judgement, not measured: as many calls as `scattered_window_calls` looks back.
    number(
        "escalation_decay_calls",
        20,
        0,
        100_000,
        "Escalation reset",
        "Calls without the loop after which its reactions start over. 0 means never.",
        group="reactions",
        weakens="down",
    ),
    # A judgement, not measured: the first step of the usual waits after a rate limit.
    number(
        "delay_seconds",
        5,
        1,
        900,
        "First pause",
        "How long the first `delay` of a loop makes the agent wait. Each further pause is twice as long, up to 15 "
        "minutes.",
        group="reactions",
        unit="seconds",
        weakens="down",
    ),
    choice(
        "reset_after_detection",
        "none",
        ("none", "loop", "all"),
        "Reset after detection",
        "Which counters a detection resets: none, those of the loop, or all.",
        group="reactions",
        strictest_first=("none", "loop", "all"),
    ),
    switch(
        "clear_on_stop",
        False,
        "Clear on stop",
        "A stop clears the history and the escalation.",
        group="reactions",
        weakens="on",
    ),
    # A judgement, not measured: enough for a person who looks, and nobody else lets an agent wait for long.
    number(
        "answer_timeout_seconds",
        120,
        1,
        86_400,
        "Time to answer a held call",
        "How long a held call waits for a decision.",
        group="reactions",
        unit="seconds",
        weakens=None,
    ),
    choice(
        "unattended_reaction",
        "block",
        ("block", "stop", "allow", "disable"),
        "Reaction to unanswered calls",
        "What happens if nobody decides in time.",
        group="reactions",
        strictest_first=("stop", "block", "allow", "disable"),
    ),
    *(replace(field, group=detector.kind) for detector in DETECTORS for field in detector.settings),
)

FIELDS: Mapping[str, Field] = MappingProxyType({field.name: field for field in _ALL})
"""Every setting by name, in the order in which they are shown."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {alias: field.name for field in _ALL for alias in field.aliases}
)
"""Further names of settings in overrides and commands, with the setting of each."""

TYPED_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "enabled": ("detection", "enabled", ""),
        "max_repeats": ("max-repeats", "repeats"),
        "ttl_seconds": ("ttl", "ttl-seconds"),
        "mode": ("mode",),
        "preset": ("preset",),
    }
)
"""The names that people type, by setting and without the prefix; the first one is used in answers."""

SETTING_OF_NAME: Mapping[str, str] = MappingProxyType(
    {word: name for name, words in TYPED_NAMES.items() for word in words}
    | {name.replace("_", "-"): name for name in FIELDS}
    | {alias.removeprefix("tool_loop_").replace("_", "-"): name for alias, name in ALIASES.items()}
)
"""The setting of every name that can be typed, in lower case with dashes and without the prefix."""

DEFAULTS: Mapping[str, Any] = MappingProxyType({field.name: field.default for field in _ALL})

_COMMON = ("enabled", "preset", "counting_scope", "escalation_scope", "rung_gap_calls")


def relevant_fields(kind: str) -> tuple[str, ...]:
    """Return the names of the settings that explain a finding of this kind, the ladder first."""
    known = BY_KIND.get(kind)
    rungs = "graduated_rungs" if known and known.ladder else ""
    names = (known.ladder, rungs, *(field.name for field in known.settings)) if known else ()
    return tuple(dict.fromkeys(filter(None, (*names, *_COMMON))))
