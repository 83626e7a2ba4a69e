"""The list of settings. Forms, API schemas, admin, docs and the chat commands are generated from it.

A setting is described once, here. Resolving several tiers into one policy belongs to `policy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

RUNGS = ("observe", "warn", "chance", "block", "ask", "judge", "stop")
"""The reactions a ladder is made of, mildest first."""

LADDERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "break": ("stop",),
        "chance_then_break": ("chance", "stop"),
        "graduated": ("warn", "warn", "stop"),
        "warn": ("warn",),
        "ask": ("ask",),
        "justify": ("judge",),
        "observe": ("observe",),
        "judge_or_ask": ("judge", "ask", "stop"),
    }
)
"""Named ladders. `judge_or_ask` is a choice, not a sequence: see `reactions.rungs`."""

LADDER_ALIASES: Mapping[str, str] = MappingProxyType(
    {"chance": "chance_then_break", "stop": "break", "terminate": "break"}
)

MAX_LADDER_RUNGS = 12

KINDS = ("repeat", "cycle", "similar", "outcome", "stagnation", "budget")


class PolicyError(ValueError):
    """A setting cannot have this value. `field` names the setting, `message` says what it may be."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


FieldType = Literal["bool", "int", "float", "choice", "ladder"]


@dataclass(frozen=True, slots=True)
class Field:
    """One setting.

    Parameters
    ----------
    name : str
        Key in policies, forms and API.
    type : {"bool", "int", "float", "choice", "ladder"}
        A ladder is a name from `LADDERS` or a list of rungs.
    default : object
        The value that holds when no tier and no preset names one.
    label, help, unit, group : str
        For people. `unit` may be empty.
    minimum, maximum : float or None
        Inclusive range of numbers.
    choices : tuple of str
        Allowed words of a choice.
    loosens : {"up", "down", "on", "off"} or None
        The direction in which a change makes detection milder.
    aliases : tuple of str
        Other spellings that commands and importers accept.
    """

    name: str
    type: FieldType
    default: Any
    label: str
    help: str
    unit: str = ""
    group: str = "general"
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    loosens: Literal["up", "down", "on", "off"] | None = None
    aliases: tuple[str, ...] = ()

    def clean(self, value: Any) -> Any:
        """The value in its canonical form.

        Raises
        ------
        PolicyError
            When it is of the wrong type or out of range.
        """
        return _CLEANERS[self.type](self, value)


def _clean_bool(field: Field, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off", "none"):
        return False
    raise PolicyError(field.name, "must be true or false")


def _clean_number(field: Field, value: Any) -> int | float:
    whole = field.type == "int"
    wanted = f"must be {'an integer' if whole else 'a number'}"
    if isinstance(value, bool):
        raise PolicyError(field.name, wanted)
    try:
        number = int(value) if whole else float(value)
    except (TypeError, ValueError, OverflowError):
        raise PolicyError(field.name, wanted) from None
    if (whole and not isinstance(value, str) and number != value) or not math.isfinite(number):
        raise PolicyError(field.name, wanted)
    unit = f" {field.unit}" if field.unit else ""
    if field.minimum is not None and number < field.minimum:
        raise PolicyError(field.name, f"must be at least {field.minimum:g}{unit}")
    if field.maximum is not None and number > field.maximum:
        raise PolicyError(field.name, f"must be at most {field.maximum:g}{unit}")
    return number


def _clean_choice(field: Field, value: Any) -> str:
    word = value.strip().lower() if isinstance(value, str) else ""
    if word not in field.choices:
        raise PolicyError(field.name, f"must be one of {', '.join(field.choices)}")
    return word


def _clean_ladder(field: Field, value: Any) -> str | tuple[str, ...]:
    if isinstance(value, str):
        word = value.strip().lower()
        word = LADDER_ALIASES.get(word, word)
        if word in LADDERS:
            return word
        value = [part.strip() for part in word.split(",")]
    if (
        not isinstance(value, list | tuple)
        or not 1 <= len(value) <= MAX_LADDER_RUNGS
        or not set(value) <= set(RUNGS)
    ):
        raise PolicyError(field.name, f"must be one of {', '.join(LADDERS)}, or a list of {', '.join(RUNGS)}")
    return tuple(value)


_CLEANERS: dict[str, Callable[[Field, Any], Any]] = {
    "bool": _clean_bool,
    "int": _clean_number,
    "float": _clean_number,
    "choice": _clean_choice,
    "ladder": _clean_ladder,
}


def _switch(name: str, default: bool, label: str, help: str, group: str, **more: Any) -> Field:
    return Field(name, "bool", default, label, help, group=group, **more)


def _count(
    name: str,
    default: int,
    low: int,
    high: int,
    label: str,
    help: str,
    group: str,
    unit: str = "calls",
    **more: Any,
) -> Field:
    more.setdefault("loosens", "up")
    return Field(name, "int", default, label, help, unit=unit, group=group, minimum=low, maximum=high, **more)


def _share(name: str, default: float, label: str, help: str, group: str) -> Field:
    return Field(name, "float", default, label, help, group=group, minimum=0.5, maximum=1.0, loosens="up")


def _choice(
    name: str, default: str, choices: tuple[str, ...], label: str, help: str, group: str, **more: Any
) -> Field:
    return Field(name, "choice", default, label, help, choices=choices, group=group, **more)


def _ladder(name: str, default: str, label: str, group: str, **more: Any) -> Field:
    return Field(
        name,
        "ladder",
        default,
        label,
        "What successive detections do, first to last; the last one repeats.",
        group=group,
        **more,
    )


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
    _switch(
        "enabled",
        True,
        "Detection",
        "Off means that nothing is tracked and no state is written.",
        "general",
        loosens="off",
        aliases=("detection", "detection_enabled"),
    ),
    _choice(
        "preset",
        "standard",
        PRESET_NAMES,
        "Preset",
        "The set of values that all other settings start from.",
        "general",
    ),
    _choice(
        "counting_scope",
        "run",
        ("run", "session"),
        "Counting scope",
        "Whether counting starts anew with each run of a session.",
        "general",
    ),
    _choice(
        "identity",
        "canonical",
        ("canonical", "raw"),
        "Call identity",
        "Compare arguments as sorted JSON, or exactly as received.",
        "general",
    ),
    _switch(
        "once_per_round",
        True,
        "Count a round once",
        "Identical calls inside one model response are one observation.",
        "general",
        loosens="on",
        aliases=("count_batch_once",),
    ),
    _switch(
        "attended",
        False,
        "Someone is attending",
        "A user message then starts all counting anew.",
        "general",
        loosens="on",
    ),
    _switch(
        "judge_available",
        False,
        "Judge available",
        "Set by the server when a judge endpoint is configured.",
        "general",
    ),
    # Reactions
    _ladder("mode", "break", "Reaction to repeats", "reactions", aliases=("repeat_ladder",)),
    Field(
        "graduated_rungs",
        "ladder",
        ("warn", "warn", "stop"),
        "Rungs of graduated",
        "The rungs behind the ladder named graduated.",
        group="reactions",
    ),
    _choice(
        "escalation_scope",
        "loop",
        ("loop", "session"),
        "Escalation",
        "Count detections per loop, or over everything in the session.",
        "reactions",
    ),
    _count(
        "rung_gap_calls",
        3,
        1,
        1000,
        "Calls between two rungs",
        "How many calls a warning has to work before the next rung.",
        "reactions",
    ),
    _count(
        "escalation_decay_calls",
        20,
        0,
        100_000,
        "Forgiven after",
        "Calls without that loop after which its ladder starts over; 0 never.",
        "reactions",
        loosens="down",
    ),
    _choice(
        "reset_after_detection",
        "none",
        ("none", "loop", "all"),
        "Reset after a detection",
        "What is forgotten once a detection was made.",
        "reactions",
    ),
    _switch(
        "clear_on_stop",
        False,
        "Clear on stop",
        "A stop forgets the history and the escalation.",
        "reactions",
        loosens="on",
    ),
    _count(
        "answer_timeout_seconds",
        120,
        1,
        86_400,
        "Time for an answer",
        "How long a question waits for a person.",
        "reactions",
        unit="seconds",
        loosens=None,
    ),
    _choice(
        "unattended_reaction",
        "block",
        ("block", "stop", "allow", "disable"),
        "Unanswered means",
        "What happens when nobody answers in time.",
        "reactions",
    ),
    # Repeat
    _switch("repeat_enabled", True, "Repeats", "Find identical calls.", "repeat", loosens="off"),
    _count(
        "max_repeats",
        4,
        2,
        1000,
        "Fires at the n-th identical call",
        "The n-th identical call is the one that is stopped.",
        "repeat",
        aliases=("repeats",),
    ),
    _count(
        "repeat_warn_at",
        0,
        0,
        1000,
        "First warning at",
        "A warning already here when the earlier results are known and equal; 0 is off.",
        "repeat",
    ),
    _choice(
        "repeat_scope",
        "consecutive",
        ("consecutive", "window", "run"),
        "Which calls count",
        "In a row, anywhere in a window of calls, or all of them.",
        "repeat",
    ),
    _count(
        "window_calls",
        10,
        2,
        60,
        "Window",
        "How many earlier calls a window holds.",
        "repeat",
        loosens="down",
        aliases=("window_size",),
    ),
    _count(
        "ttl_seconds",
        120,
        1,
        31_536_000,
        "Time to live",
        "Calls older than this are forgotten; exactly this old still counts.",
        "repeat",
        unit="seconds",
        loosens="down",
        aliases=("ttl",),
    ),
    _choice(
        "ttl_from",
        "previous",
        ("previous", "entry", "never"),
        "Age counts from",
        "The previous identical call, each call itself, or no ageing.",
        "repeat",
    ),
    _switch(
        "result_aware",
        False,
        "Look at results",
        "Identical calls whose results keep changing are progress.",
        "repeat",
        loosens="on",
    ),
    _count(
        "max_repeats_changing",
        10,
        2,
        10_000,
        "Changing results",
        "Warn at the n-th identical call although its results change.",
        "repeat",
    ),
    _count(
        "scattered_repeats",
        4,
        0,
        100,
        "Scattered repeats",
        "Warn at the n-th identical call with the same result among the last calls, nothing changed between; 0 is off.",
        "repeat",
    ),
    _count(
        "scattered_window_calls",
        20,
        2,
        60,
        "Window of scattered repeats",
        "How many calls back they are looked for.",
        "repeat",
        loosens="down",
    ),
    _count(
        "slow_gap_seconds",
        20,
        1,
        86_400,
        "Slow call",
        "Calls at least this far apart weigh a fifth.",
        "repeat",
        unit="seconds",
        loosens="down",
    ),
    _count(
        "poll_warn_at",
        10,
        2,
        10_000,
        "Polls: warning at",
        "For tools of the class poll, while their answer stays the same.",
        "repeat",
    ),
    _count(
        "poll_max_repeats",
        20,
        2,
        10_000,
        "Polls: fires at",
        "For tools of the class poll, while their answer stays the same.",
        "repeat",
    ),
    # Cycle
    _switch("cycle_enabled", False, "Cycles", "Find A-B-A-B and longer laps.", "cycle", loosens="off"),
    _count("cycle_min_length", 2, 2, 10, "Shortest lap", "Calls in the shortest lap looked for.", "cycle"),
    _count(
        "cycle_max_length",
        6,
        2,
        10,
        "Longest lap",
        "Calls in the longest lap looked for.",
        "cycle",
        loosens="down",
    ),
    _count(
        "cycle_min_laps",
        3,
        2,
        20,
        "Fires at lap",
        "The n-th equal lap in a row, when results are known.",
        "cycle",
        unit="laps",
    ),
    _count(
        "cycle_unknown_laps",
        4,
        2,
        20,
        "Fires at lap, results unknown",
        "The same when results never came.",
        "cycle",
        unit="laps",
    ),
    _ladder("cycle_ladder", "graduated", "Reaction to cycles", "cycle"),
    # Similar
    _switch(
        "similar_enabled",
        False,
        "Similar calls",
        "Find calls of one tool that hardly differ.",
        "similar",
        loosens="off",
    ),
    _share("similar_ratio", 0.85, "Similarity", "Arguments at least this alike are similar.", "similar"),
    _count(
        "similar_max_calls", 6, 2, 100, "Fires at the n-th", "The n-th similar call in the window.", "similar"
    ),
    _count(
        "similar_window_calls",
        12,
        2,
        40,
        "Window",
        "How many earlier calls are compared.",
        "similar",
        loosens="down",
    ),
    _choice(
        "similar_method",
        "sketch",
        ("sketch", "literal"),
        "Method",
        "Word sketches without plain text, or edit distance on the argument text (kept in the state).",
        "similar",
    ),
    _ladder("similar_ladder", "warn", "Reaction to similar calls", "similar"),
    # Outcome
    _switch(
        "outcome_enabled",
        False,
        "Equal outcomes",
        "Find different calls that get one and the same answer.",
        "outcome",
        loosens="off",
    ),
    _count(
        "outcome_max_results",
        6,
        2,
        100,
        "Fires at the n-th equal result",
        "Of one tool, whatever its arguments.",
        "outcome",
        unit="results",
    ),
    _count(
        "outcome_max_errors",
        4,
        2,
        100,
        "Fires at the n-th equal error",
        "Of one tool, in a row.",
        "outcome",
        unit="errors",
    ),
    _count(
        "outcome_max_similar",
        4,
        2,
        100,
        "Fires at the n-th similar call with that result",
        "Calls of one tool that hardly differ and get the same result, in a row.",
        "outcome",
    ),
    _share("outcome_ratio", 0.9, "Similarity", "Results at least this alike are one outcome.", "outcome"),
    _choice(
        "outcome_method",
        "fingerprint",
        ("fingerprint", "literal", "literal_masked"),
        "Method",
        "Masked fingerprints, or the similarity of the text (kept in the state), as it came or masked.",
        "outcome",
    ),
    _ladder("outcome_ladder", "graduated", "Reaction to equal outcomes", "outcome"),
    # Stagnation
    _switch(
        "stagnation_enabled",
        False,
        "Stagnation",
        "Find calls in a row that bring nothing new.",
        "stagnation",
        loosens="off",
    ),
    _count(
        "stagnation_max_calls",
        5,
        2,
        1000,
        "Fires at the n-th call",
        "Calls in a row without a new result or a successful change.",
        "stagnation",
    ),
    _ladder("stagnation_ladder", "graduated", "Reaction to stagnation", "stagnation"),
    # Budget
    _switch(
        "budget_enabled",
        False,
        "Budget",
        "Limit rounds, calls, time, tokens and cost of a run.",
        "budget",
        loosens="off",
    ),
    _count(
        "budget_max_rounds",
        100,
        0,
        1_000_000,
        "Rounds",
        "Fires at the n-th round; 0 is off.",
        "budget",
        unit="rounds",
        aliases=("max_rounds",),
    ),
    _switch(
        "budget_soft_rounds",
        True,
        "Only when little is new",
        "The round limit reacts only where the last 20 rounds brought little new.",
        "budget",
        loosens="on",
    ),
    _count("budget_max_calls", 1000, 0, 10_000_000, "Calls", "Fires at the n-th call; 0 is off.", "budget"),
    _count(
        "budget_max_seconds",
        0,
        0,
        31_536_000,
        "Time",
        "Fires after this long; 0 is off.",
        "budget",
        unit="seconds",
    ),
    _count(
        "budget_max_tokens",
        0,
        0,
        10**12,
        "Tokens",
        "Fires at this many tokens; 0 is off.",
        "budget",
        unit="tokens",
    ),
    Field(
        "budget_max_cost_usd",
        "float",
        0.0,
        "Cost",
        "Fires at this cost; 0 is off.",
        "US dollars",
        "budget",
        0,
        1e9,
        loosens="up",
    ),
    Field(
        "budget_notice_share",
        "float",
        0.8,
        "Notice at",
        "Share of a limit at which operators get a notice.",
        "",
        "budget",
        0.1,
        1.0,
    ),
    _count(
        "budget_extension_rounds",
        40,
        1,
        1_000_000,
        "Extension",
        "Rounds that an accepted justification grants.",
        "budget",
        unit="rounds",
        aliases=("extra_rounds",),
    ),
    _count(
        "budget_max_extensions",
        1,
        0,
        100,
        "Extensions",
        "How often a run may be extended.",
        "budget",
        unit="extensions",
        aliases=("max_extensions",),
    ),
    _ladder("budget_ladder", "judge_or_ask", "Reaction to a spent budget", "budget"),
)

FIELDS: Mapping[str, Field] = MappingProxyType({field.name: field for field in _ALL})
"""Every setting by name, in the order in which people should see them."""

DEFAULTS: Mapping[str, Any] = MappingProxyType({field.name: field.default for field in _ALL})

_COMMON = ("enabled", "preset", "counting_scope", "escalation_scope", "rung_gap_calls")


def relevant_fields(kind: str) -> tuple[str, ...]:
    """Names of the settings that explain a finding of this kind, the reaction first."""
    own = tuple(name for name, field in FIELDS.items() if field.group == kind)
    return (*(("mode",) if kind == "repeat" else ()), *own, *_COMMON)
