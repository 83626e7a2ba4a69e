"""Edit conflicts: the stored values beside what this person entered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detection.console import formatting
from detection.engine.fields import FIELDS
from detection.services.versions import ChangedMeanwhile, version_of

MAX_CHARACTERS = 300


def conflict(error: ChangedMeanwhile, entered: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `console/_version.html` shows: the version to send now, and both values of what was entered."""
    stored = {name: error.current.get(name) for name in entered}
    return {"version": version_of(error.current), "conflict": compare(stored, entered)}


def compare(stored: Mapping[str, Any], entered: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (label, stored now, yours) of every value that differs; each side has stored values or texts of a form."""
    rows = []
    for name in {**stored, **entered}:
        theirs, yours = _shown(name, stored.get(name)), _shown(name, entered.get(name))
        if theirs != yours:
            rows.append((_label(name), theirs or "–", yours or "–"))
    return rows


def _shown(name: str, value: Any) -> str:
    text = _text(value)
    is_time = name in FIELDS and FIELDS[name].unit in ("seconds", "minutes")
    return formatting.setting_value(float(text), name) if is_time and text.isdecimal() else text


def _label(name: str) -> str:
    return FIELDS[name].label if name in FIELDS else formatting.word(name).capitalize()


def _text(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(one)}" for name, one in value.items())[:MAX_CHARACTERS]
    if isinstance(value, list | tuple):
        return ", ".join(str(one) for one in value)[:MAX_CHARACTERS]
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value).strip()
    return {"true": "on", "false": "off"}.get(text.lower(), text)[:MAX_CHARACTERS]
