"""Formatting of values for pages: text with invisible characters shown, durations, numbers, settings and sources."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import orjson

from detection.engine import durations
from detection.engine.errors import PolicyError
from detection.engine.fields import FIELDS
from detection.engine.scopes import Scope
from detection.models import JobState

# Controls, soft hyphen, zero-width and bidirectional marks, separators, BOM and tags: they could make text read as
# something else.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f"
    "\u205f-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_HIDDEN_IN_BLOCK = re.compile(_HIDDEN.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_NAMED = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\x00": "␀", "\x1b": "␛", "\x7f": "␡"}

_JOB_CHIPS = {JobState.RUNNING: "watch", JobState.FINISHED: "ok", JobState.FAILED: "stop"}

UNSET: Final = "–"
"""The value of a setting that is not set."""


def job_state(state: str) -> tuple[str, str]:
    """Return the chip of a job's state, and the state in words."""
    known = JobState(state)
    return _JOB_CHIPS.get(known, "idle"), str(known.label)


def _mark(found: re.Match[str]) -> str:
    character = found[0]
    return _NAMED.get(character) or f"⟦U+{ord(character):04X}⟧"


def visible(value: object) -> str:
    """Return text on one line, every invisible or direction-changing character as a visible mark."""
    return _HIDDEN.sub(_mark, str(value))


def visible_block(value: object) -> str:
    """Return text with its line breaks and tabs, every other invisible character as a visible mark."""
    return _HIDDEN_IN_BLOCK.sub(_mark, str(value).replace("\r\n", "\n"))


def clipped(value: object, length: int) -> str:
    """Return the beginning of a text like `visible`, with an ellipsis if it is longer; reads no more than it shows."""
    text = visible(str(value)[: length + 1])
    return text if len(text) <= length else f"{text[: length - 1]}…"


def pretty(text: str | None) -> str:
    """Return JSON text indented, any other text as it is."""
    if text is None:
        return ""
    if text[:1] in "{[":
        try:
            return orjson.dumps(orjson.loads(text), option=orjson.OPT_INDENT_2).decode()
        except orjson.JSONDecodeError:
            return text
    return text


def moment(value: datetime, now: datetime, *, is_relative: bool) -> str:
    """Return a time as seen from now, or in UTC, with its year unless that is the current one."""
    if is_relative:
        return durations.relative((now - value).total_seconds())
    utc = value.astimezone(UTC)
    return utc.strftime(f"%d %b {'' if utc.year == now.year else '%Y '}%H:%M:%S UTC")


def since(delta: timedelta) -> str:
    """Return an offset inside a loop: ``+9.8 s``, ``+5 min 12 s``; from an hour on, as a span."""
    seconds = delta.total_seconds()
    if 120 <= seconds < 3600:
        return f"+{durations.exact(int(seconds))}"
    return f"+{durations.precise(seconds)}"


def of_limit(count: float, limit: float) -> str:
    """Return a count beside its limit in short form: ``3 of 6``, and ``12, limit 6`` once it is beyond it."""
    return f"{compact(count)}{', limit' if count > limit else ' of'} {compact(limit)}"


def number(value: float | None) -> str:
    """Return a whole number with separators; an en dash for nothing."""
    return "–" if value is None else f"{value:,.0f}"


def compact(value: float | None) -> str:
    """Return a large number in short form: 1,284 but 12.8k and 3.1M."""
    if value is None:
        return "–"
    for limit, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if value >= limit:
            scaled = value / (1000 if unit == "k" else limit)
            return f"{scaled:.1f}".removesuffix(".0") + unit
    return f"{value:,.0f}"


money = durations.money


def cost(value: float | Decimal | None) -> str:
    """Return the cost of calls; an en dash if no cost was reported."""
    return money(value) if value else "–"


def ordinal(value: int) -> str:
    """Return 1st, 2nd, 3rd, 4th and so on."""
    ending = "th" if 10 <= value % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value}{ending}"


def setting_value(value: Any, name: str = "") -> str:
    """Return the value of a setting for people; with its name, a time in its largest units."""
    field = FIELDS.get(name)
    if (
        field is not None
        and field.unit in ("seconds", "minutes")
        and isinstance(value, int | float)
        and value
    ):
        return durations.exact(value, field.unit)
    if value is None or value == "" or value == [] or value == {}:
        return UNSET
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " → ".join(str(part) for part in value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("_", " ")


def source_name(source: str) -> str:
    """Return where a value comes from: ``model openai / gpt-5``, ``preset standard``."""
    try:
        label = Scope.parse(source).label
    except PolicyError:
        return source.replace(":", " ", 1)
    return label[:1].lower() + label[1:]


def word(value: str) -> str:
    """Return an identifier as words: ``chance_then_break`` as ``chance then break``."""
    return value.replace("_", " ")


def label_of(name: str) -> str:
    """Return the name of a setting, or of another part of an audit entry, for people."""
    return FIELDS[name].label if name in FIELDS else word(name).capitalize()
