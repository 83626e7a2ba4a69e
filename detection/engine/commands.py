"""Settings commands in a chat: `!/set(tool-loop-mode=chance, tool-loop-max-repeats=6)` and `!/unset(tool-loop-mode)`.

A number after `+` raises a limit by that amount: `!/set(tool-loop-budget-max-calls=+100)`. `tool-loop-exempt` is no
setting but a list of tools that the session spares: `!/set(tool-loop-exempt=step)` adds to it, and
`!/unset(tool-loop-exempt=step)` removes from it, without names all.

Reads commands, applies them to a session's override and writes the one-line replies. Storing belongs to the services.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detection.engine.errors import PolicyError
from detection.engine.field import Field
from detection.engine.fields import DEFAULTS, FIELDS, SETTING_OF_NAME, TYPED_NAMES
from detection.engine.memory import MAX_EXEMPT, bounded_name
from detection.engine.policy import Policy, validate
from detection.engine.scopes import SESSION

PREFIX = "tool-loop-"
EXEMPT: Final = "exempt"
"""Names, as a setting would be, the list of the tools that the session spares."""
# Commands stand at the beginning of a message; a judgement for the time of a long one.
MAX_COMMAND_CHARS = 2000
MAX_KEPT_SHOWN = 6
"""Settings that a reply about a preset names."""
_MAX_SHOWN_CHARS = 60
"""Of an unknown name, what tells a person which one it was."""


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()
"""Stands for a value: the session inherits the setting again."""


class CommandError(ValueError):
    """A command that cannot be executed; the text is the one-line reply."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting to set to a value as written or, with `UNSET`, to inherit again.

    Of `EXEMPT`, `tools` are the tools to add or, with `UNSET`, to remove; none means all.
    """

    field: str
    value: Any
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a text, with its changes or the error to reply with."""

    changes: tuple[Change, ...] = ()
    error: str = ""


_COMMAND = re.compile(r"!/(set|unset)\(([^()]*)\)", re.IGNORECASE)
# One setting of LoopGuard makes it a command for LoopGuard, wherever it stands in the list.
_LOOKS_LIKE = re.compile(r"!/(?:set|unset)\(\s*(?:[^()]*,\s*)?(?:tool[-_]loop|loop[-_]guard)", re.IGNORECASE)
_HELP = re.compile(r"!/help\(\s*(?:tool[-_]loop[^()]*)?\)", re.IGNORECASE)
_OURS = re.compile(r"(?:^|,)\s*(?:tool[-_]loop|loop[-_]guard)", re.IGNORECASE)


def shown_name(field: str) -> str:
    """The name of a setting as it is typed in a command."""
    return PREFIX + (TYPED_NAMES[field][0] if field in TYPED_NAMES else field.replace("_", "-"))


def contains_command(text: str) -> bool:
    """Whether a chat text contains a command for LoopGuard."""
    return "!/" in text and _LOOKS_LIKE.search(text[:MAX_COMMAND_CHARS]) is not None


def asks_for_help(text: str) -> bool:
    """Whether a chat text asks for the settings that a chat can change."""
    return "!/" in text and _HELP.search(text[:MAX_COMMAND_CHARS]) is not None


def without_commands(text: str, characters: int = MAX_COMMAND_CHARS) -> str:
    """Return a text without the commands in its first `characters`; the same text if there are none."""
    head = text[: max(0, characters)]
    if not contains_command(head) and not asks_for_help(head):
        return text
    kept = _HELP.sub("", _COMMAND.sub(lambda found: "" if _is_ours(found[2]) else found[0], head))
    return (kept + text[len(head) :]).strip()


def _is_ours(body: str) -> bool:
    return not body.strip() or _OURS.search(body) is not None


def parse(text: str) -> list[Command]:
    """Read every command in a text that is meant for LoopGuard; everything else is ignored.

    Parameters
    ----------
    text : str
        Read up to `MAX_COMMAND_CHARS`.

    Returns
    -------
    list of Command
        In the order written. Values are not checked yet.
    """
    commands = []
    for verb, body in _COMMAND.findall(text[:MAX_COMMAND_CHARS]):
        if not _is_ours(body):
            continue
        try:
            commands.append(Command(_changes(verb.lower(), body)))
        except CommandError as error:
            commands.append(Command(error=str(error)))
    return commands


def apply(
    command: Command, values: Mapping[str, Any], current: Callable[[str], Any] | None = None
) -> dict[str, object]:
    """Return a session's override after a command.

    Parameters
    ----------
    values : mapping
        The override before.
    current : callable, optional
        Returns the value of a setting that is in effect before the command; without it, that of the override or the
        default.

    Raises
    ------
    CommandError
        With the one-line reply; no change of the command may be applied then.
    """
    if command.error:
        raise CommandError(command.error)
    changed = dict(values)
    for change in command.changes:
        if change.field == EXEMPT:
            continue
        value = None if change.value is UNSET else change.value
        if isinstance(value, str) and value.startswith("+") and FIELDS[change.field].type in ("int", "float"):
            before = current(change.field) if current else values.get(change.field, DEFAULTS[change.field])
            value = _raised(FIELDS[change.field], before, value)
        changed[change.field] = value
    try:
        return validate(SESSION, changed)
    except PolicyError as error:
        raise CommandError(f"{shown_name(error.field)} {error.message}.") from None


def exempted(command: Command, exempt: Sequence[str]) -> list[str]:
    """Return the tools that a session spares after a command, the newest last.

    Raises
    ------
    CommandError
        With the one-line reply; no change of the command may be applied then.
    """
    tools = list(exempt)
    for change in command.changes:
        if change.field == EXEMPT and change.value is UNSET:
            missing = next((tool for tool in change.tools if tool not in tools), None)
            if missing is not None:
                raise CommandError(f"{missing} is not exempt in this session.")
            tools = [tool for tool in tools if change.tools and tool not in change.tools]
        elif change.field == EXEMPT:
            tools = list(dict.fromkeys((*tools, *change.tools)))
    if len(tools) > MAX_EXEMPT:
        raise CommandError(f"At most {MAX_EXEMPT} tools can be exempt in a session.")
    return tools


def _raised(field: Field, before: float | str, by: str) -> float:
    """Return a limit raised by an amount as written; a setting without a limit stays without one."""
    name = shown_name(field.name)
    if isinstance(before, str):
        raise CommandError(f"{name} is {before}, so it cannot be raised: set a number.")
    try:
        amount = float(by) if field.type == "float" else int(by)
    except ValueError:
        amount = 0
    if not 0 < amount <= field.maximum:
        raise CommandError(f"{name} is raised by a number, as in !/set({name}=+10).")
    if not before and field.zero_is_off and not field.minimum:
        raise CommandError(f"{name} is not limited, so it cannot be raised.")
    return min(before + amount, field.maximum)


def reply(changes: Sequence[Change], policy: Policy, exempt: Sequence[str] = ()) -> str:
    """Return the one-line reply to applied changes, under the policy and the exempt tools that result from them.

    Of a preset, it also says which settings other values still decide.
    """
    words = []
    if any(change.field == EXEMPT for change in changes):
        words.append(f"{shown_name(EXEMPT)} is now {', '.join(exempt) or 'no tool'}")
    for change in changes:
        if change.field == EXEMPT:
            continue
        source = f" (from {policy.sources[change.field]})" if change.value is UNSET else ""
        words.append(f"{shown_name(change.field)} is now {shown_value(policy.get(change.field))}{source}")
    if any(change.field == "preset" for change in changes):
        words += kept_lines(policy, {change.field for change in changes})
    return "; ".join(words) + "."


def shown_value(value: Any) -> str:
    """Return the value of a setting as it is typed in a command."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def kept_lines(policy: Policy, without: Collection[str] = ()) -> list[str]:
    """Return in words which settings differ from the preset, each with its source; at most `MAX_KEPT_SHOWN`."""
    kept = [one for one in policy.kept_over_preset() if one.setting not in without]
    lines = [
        f"{shown_name(one.setting)} stays {shown_value(one.value)} (from {one.source})"
        for one in kept[:MAX_KEPT_SHOWN]
    ]
    more = len(kept) - MAX_KEPT_SHOWN
    return (
        [*lines, f"{more} more {'settings stay' if more > 1 else 'setting stays'} as set"]
        if more > 0
        else lines
    )


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
    if name.startswith("tool-loop") and bare == EXEMPT:
        return EXEMPT
    if name.startswith("tool-loop") and bare in SETTING_OF_NAME:
        return SETTING_OF_NAME[bare]
    known = ", ".join(shown_name(field) for field in (*TYPED_NAMES, EXEMPT))
    raise CommandError(f"Unknown setting '{word.strip()[:_MAX_SHOWN_CHARS]}'. Known: {known}.")


def _changes(verb: str, body: str) -> tuple[Change, ...]:
    parts = _split(body)
    if not parts:
        raise CommandError(f"!/{verb}() names no setting.")
    return tuple(_set(part) if verb == "set" else _unset(part) for part in parts)


def _unset(part: str) -> Change:
    name, equals, value = part.partition("=")
    field = _field(name)
    return Change(field, UNSET, _tools(value) if field == EXEMPT and equals else ())


def _tools(value: str) -> tuple[str, ...]:
    names = [name.strip().strip("\"'") for name in value.split(",")]
    if not all(names) or any("*" in name for name in names):
        example = shown_name(EXEMPT)
        raise CommandError(f"{example} takes the whole names of tools, as in !/set({example}=step).")
    return tuple(bounded_name(name) for name in names)


def _set(part: str) -> Change:
    name, equals, value = part.partition("=")
    field = _field(name)
    if not equals or not value.strip():
        raise CommandError(f"{shown_name(field)} needs a value, as in !/set({shown_name(field)}=…).")
    if field == EXEMPT:
        return Change(field, value, _tools(value))
    return Change(field, value.strip().strip("\"'"))
