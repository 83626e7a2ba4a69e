"""Definition of one setting: its type, its range, where it may be set, and its label and help.

General settings are listed in `fields`, those of a detector in its class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from detection.engine.errors import PolicyError
from detection.engine.scopes import SCOPE_KINDS, ScopeKind

RUNGS = ("observe", "warn", "delay", "reuse", "chance", "block", "finish", "ask", "judge", "stop")
"""The reactions that a ladder consists of, weakest first."""

LADDERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "break": ("stop",),
        "block_then_stop": ("chance", "block", "block", "block", "stop"),
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

# Longer than any ladder that people can follow on a screen; a judgement.
MAX_LADDER_RUNGS = 12

AUTO: Final = "auto"
"""The word instead of a number that follows other settings, see `Field.auto`."""

FieldType = Literal["bool", "int", "float", "choice", "ladder"]


NOT_OF_TOOLS = tuple(kind for kind in SCOPE_KINDS if kind != "tool")
"""Scopes of settings of the whole session, which cannot differ from tool to tool."""


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
        The value where no override and no preset contains one.
    label, help, unit : str
        For people. `unit` may be empty.
    group : str
        `general`, `reactions` or the kind of a detector.
    minimum, maximum : float
        Inclusive range of numbers.
    choices : tuple of str
        Allowed values of a choice.
    weakens : {"up", "down", "on", "off"} or None
        The direction of a change that weakens detection.
    strictest_first : tuple of str
        The choices in order of strictness, if they have one.
    zero_is_off : bool
        Whether a zero that is allowed means "off" or "never" instead of the smallest amount.
    aliases : tuple of str
        Further names that overrides and commands accept.
    scopes : tuple of str
        Kinds of scope whose overrides may contain it.
    auto : callable or None
        Returns the number that `AUTO` stands for under all values; None where the word is not allowed.
    """

    name: str
    type: FieldType
    default: Any
    label: str
    help: str
    unit: str = ""
    group: str = "general"
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()
    weakens: Literal["up", "down", "on", "off"] | None = None
    strictest_first: tuple[str, ...] = ()
    zero_is_off: bool = True
    aliases: tuple[str, ...] = ()
    scopes: tuple[ScopeKind, ...] = SCOPE_KINDS
    auto: Callable[[Mapping[str, Any]], int] | None = None

    def clean(self, value: Any) -> Any:
        """Return the value in its canonical form.

        Raises
        ------
        PolicyError
            When it is of the wrong type or out of range.
        """
        return _CLEANERS[self.type](self, value)

    def effective(self, values: Mapping[str, Any]) -> Any:
        """Return the value of the setting among all values, a number instead of `AUTO`."""
        value = values[self.name]
        return self.auto(values) if self.auto is not None and value == AUTO else value


def number_text(value: float) -> str:
    """Return a limit for people: `31,536,000`, `0.5`."""
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _clean_bool(field: Field, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off", "none"):
        return False
    raise PolicyError(field.name, "must be true or false")


def _clean_number(field: Field, value: Any) -> int | float | str:
    whole = field.type == "int"
    allowed = f"between {number_text(field.minimum)} and {number_text(field.maximum)}"
    if field.auto is not None:
        if isinstance(value, str) and value.strip().lower() == AUTO:
            return AUTO
        allowed += f", or {AUTO}"
    number: int | float = math.nan
    if not isinstance(value, bool):
        try:
            number = int(value) if whole else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    if not math.isfinite(number) or (whole and not isinstance(value, str) and number != value):
        raise PolicyError(field.name, f"must be {'an integer' if whole else 'a number'} {allowed}")
    if not field.minimum <= number <= field.maximum:
        raise PolicyError(field.name, f"must be {allowed}")
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
        or any(rung not in RUNGS for rung in value)
    ):
        raise PolicyError(
            field.name,
            f"must be one of {', '.join(LADDERS)}, or a list of 1 to {MAX_LADDER_RUNGS} of {', '.join(RUNGS)}",
        )
    return tuple(value)


_CLEANERS: dict[str, Callable[[Field, Any], Any]] = {
    "bool": _clean_bool,
    "int": _clean_number,
    "float": _clean_number,
    "choice": _clean_choice,
    "ladder": _clean_ladder,
}


def switch(name: str, default: bool, label: str, text: str, **more: Any) -> Field:
    """Return an on/off setting."""
    return Field(name, "bool", default, label, text, **more)


def number(
    name: str, default: int, low: int, high: int, label: str, text: str, unit: str = "calls", **more: Any
) -> Field:
    """Return a whole-number setting; a higher value weakens detection unless `weakens` says otherwise."""
    more.setdefault("weakens", "up")
    return Field(name, "int", default, label, text, unit=unit, minimum=low, maximum=high, **more)


def ratio(name: str, default: float, label: str, text: str, **more: Any) -> Field:
    """Return a similarity from 0.5 to 1."""
    more.setdefault("weakens", "up")
    return Field(name, "float", default, label, text, minimum=0.5, maximum=1.0, **more)


def choice(name: str, default: str, choices: tuple[str, ...], label: str, text: str, **more: Any) -> Field:
    """Return a setting that is one word of several."""
    return Field(name, "choice", default, label, text, choices=choices, **more)


def ladder(name: str, default: str, label: str, **more: Any) -> Field:
    """Return an escalation ladder."""
    text = "What successive detections of one loop do, in order. The last reaction repeats."
    return Field(name, "ladder", default, label, text, **more)
