"""Definition of one setting: its type, its range, where it may be set, and its texts for people.

The settings themselves are listed in `fields` and `detector_fields`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from detection.engine.errors import PolicyError
from detection.engine.scopes import SCOPE_KINDS, ScopeKind

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
        The value where no override and no preset contains one.
    label, help, unit, group : str
        For people. `unit` may be empty.
    minimum, maximum : float
        Inclusive range of numbers.
    choices : tuple of str
        Allowed words of a choice.
    weakens : {"up", "down", "on", "off"} or None
        The direction in which a change weakens detection.
    aliases : tuple of str
        Further names that overrides and commands accept.
    scopes : tuple of str
        Kinds of scope whose overrides may contain it.
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
    aliases: tuple[str, ...] = ()
    scopes: tuple[ScopeKind, ...] = SCOPE_KINDS

    def clean(self, value: Any) -> Any:
        """The value in its canonical form.

        Raises
        ------
        PolicyError
            When it is of the wrong type or out of range.
        """
        return _CLEANERS[self.type](self, value)


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


def _clean_number(field: Field, value: Any) -> int | float:
    whole = field.type == "int"
    allowed = f"between {number_text(field.minimum)} and {number_text(field.maximum)}"
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


def switch(name: str, default: bool, label: str, text: str, group: str, **more: Any) -> Field:
    """An on/off setting."""
    return Field(name, "bool", default, label, text, group=group, **more)


def count(
    name: str,
    default: int,
    low: int,
    high: int,
    label: str,
    text: str,
    group: str,
    unit: str = "calls",
    **more: Any,
) -> Field:
    """A whole number of something."""
    more.setdefault("weakens", "up")
    return Field(name, "int", default, label, text, unit=unit, group=group, minimum=low, maximum=high, **more)


def share(name: str, default: float, label: str, text: str, group: str) -> Field:
    """A likeness from 0.5 to 1."""
    return Field(name, "float", default, label, text, group=group, minimum=0.5, maximum=1.0, weakens="up")


def choice(
    name: str, default: str, choices: tuple[str, ...], label: str, text: str, group: str, **more: Any
) -> Field:
    """One word of several."""
    return Field(name, "choice", default, label, text, choices=choices, group=group, **more)


def ladder(name: str, default: str, label: str, group: str, **more: Any) -> Field:
    """A list of reactions."""
    return Field(
        name,
        "ladder",
        default,
        label,
        "What successive detections do, first to last; the last one repeats.",
        group=group,
        **more,
    )
