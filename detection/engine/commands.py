"""Settings commands in a chat: `!/set(tool-loop-mode=chance, tool-loop-max-repeats=6)` and `!/unset(tool-loop-mode)`.

Reads a command and words its one-line answer. Storing the change belongs to the services.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detection.engine.fields import FIELDS, PolicyError
from detection.engine.policy import Policy

PREFIX = "tool-loop-"
MAX_COMMAND_CHARS = 2000


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()
"""In place of a value: the setting of this tier is taken away, the tier below holds."""


class CommandError(ValueError):
    """A command that cannot be followed; the text is the one line that the user is told."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting to set or, with `UNSET`, to take away."""

    field: str
    value: Any


_COMMAND = re.compile(r"!/(set|unset)\(([^()]*)\)", re.IGNORECASE)
_LOOKS_LIKE = re.compile(r"!/(?:set|unset)\(\s*(?:tool[-_]loop|loop[-_]guard)", re.IGNORECASE)

# The names people type, without the prefix; the first one is used in answers.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "enabled": ("detection", "detection-enabled", "enabled", ""),
    "max_repeats": ("max-repeats", "repeats", "detection-max-repeats"),
    "ttl_seconds": ("ttl", "ttl-seconds", "detection-ttl-seconds"),
    "mode": ("mode", "detection-mode"),
    "preset": ("preset",),
}
_FIELD_OF: dict[str, str] = {word: name for name, words in _NAMES.items() for word in words}
_FIELD_OF |= {name.replace("_", "-"): name for name in FIELDS if name.replace("_", "-") not in _FIELD_OF}


def shown_name(field: str) -> str:
    """The name of a setting as it is typed in a command."""
    return PREFIX + (_NAMES[field][0] if field in _NAMES else field.replace("_", "-"))


def contains_command(text: str) -> bool:
    """Whether a chat text holds a command that is meant for LoopGuard."""
    return "!/" in text and _LOOKS_LIKE.search(text[:MAX_COMMAND_CHARS]) is not None


def parse(text: str) -> list[Change]:
    """Read every command in a text.

    Parameters
    ----------
    text : str
        One or more `!/set(…)` and `!/unset(…)`; the words around them are ignored.

    Returns
    -------
    list of Change
        In the order written, values checked.

    Raises
    ------
    CommandError
        With exactly one line that says what was wrong; nothing of the command is to be applied then.
    """
    found = _COMMAND.findall(text[:MAX_COMMAND_CHARS])
    if not found:
        raise CommandError("No command found. Write !/set(tool-loop-mode=chance) or !/unset(tool-loop-mode).")
    changes: list[Change] = []
    for verb, body in found:
        parts = _split(body)
        if not parts:
            raise CommandError(f"!/{verb.lower()}() names no setting.")
        read = _set if verb.lower() == "set" else _unset
        changes += [read(part) for part in parts]
    return changes


def reply(changes: Sequence[Change], policy: Policy) -> str:
    """One line: what holds now, after the changes were applied and the policy resolved again."""
    words = []
    for change in changes:
        value = policy.get(change.field)
        shown = (
            str(value).lower()
            if isinstance(value, bool)
            else value
            if not isinstance(value, tuple)
            else ",".join(value)
        )
        source = f" (from {policy.sources[change.field]})" if change.value is UNSET else ""
        words.append(f"{shown_name(change.field)} is now {shown}{source}")
    return "; ".join(words) + "."


def _split(body: str) -> list[str]:
    """Comma-separated parts; a part without "=" continues a list value, as in `mode=warn,stop`."""
    parts: list[str] = []
    for part in (piece.strip() for piece in body.split(",")):
        if not part:
            continue
        if (
            parts
            and "=" in parts[-1]
            and "=" not in part
            and not part.lower().startswith(("tool-loop", "tool_loop"))
        ):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _field(word: str) -> str:
    name = word.strip().lower().replace("_", "-")
    bare = name.removeprefix("tool-loop").removeprefix("-")
    if name.startswith("tool-loop") and bare in _FIELD_OF:
        return _FIELD_OF[bare]
    known = ", ".join(shown_name(field) for field in _NAMES)
    raise CommandError(f"Unknown setting '{word.strip()[:60]}'. Known: {known}.")


def _set(part: str) -> Change:
    name, equals, value = part.partition("=")
    field = _field(name)
    if not equals or not value.strip():
        raise CommandError(f"{shown_name(field)} needs a value, as in !/set({shown_name(field)}=…).")
    try:
        return Change(field, FIELDS[field].clean(value.strip().strip("\"'")))
    except PolicyError as error:
        raise CommandError(f"{shown_name(field)} {error.message}.") from None


def _unset(part: str) -> Change:
    return Change(_field(part.partition("=")[0]), UNSET)
