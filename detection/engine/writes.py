"""Recognises writes: calls that change something, and the receipts they return.

A receipt ("Successfully wrote file a.txt", `{"success": true}`, the changed record with a new id) says that a piece of
work is done. Many pieces of work have the same receipt, so an identical one is no evidence of a loop. The identical
call again is: its receipt is the same although it has another id, see `counts_by_receipt`. This does not hold for a
step, such as `increment` or `move north`, which does something else each time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from detection.engine import tables
from detection.engine.policy_settings import PolicySettings
from detection.engine.shell_commands import ShellLine
from detection.engine.tool_classes import ToolTraits
from detection.engine.tool_verbs import intent_of, leads_on, words_of

Effect = Literal["", "command", "look", "message", "note", "poll", "search", "step", "write"]
"""The intent of a call: unknown, a shell command that changes something, reads or searches, a message, a note of the
agent for itself, a poll, a write that goes one step on, or any other write."""

CHANGES = frozenset(("command", "step", "write"))
"""Effects of calls that change something."""

COUNTED = frozenset(("message", "write"))
"""Effects of which an identical call counts by what it does; see `counts_by_receipt`."""

# A command that sleeps first waits for a state that others change.
_OF_SHELL: Mapping[str, Effect] = {
    "": "",
    "change": "command",
    "look": "look",
    "nothing": "poll",
    "search": "search",
    "send": "write",
    "sleep": "poll",
}

_ACTION_FIELDS = tables.words("actions", about="action")
_ACTION_NAMES = frozenset(_ACTION_FIELDS)
_STATEMENT_FIELDS = tables.words("actions", about="statement")
_DOES: Mapping[str, Effect] = {"polls": "poll", "looks": "", "writes": "write"}
_OF_ACTIONS = {word: effect for does, effect in _DOES.items() for word in tables.words("actions", does=does)}
# Names of actions are shorter, and texts longer; a judgement, not measured.
_MAX_ACTION_CHARS = 60
_SQL_WRITE = tables.compiled(
    rf"(?is)\W{{0,4}}(?:with\b.{{0,400}}?\)\s*)?(?:{'|'.join(row['pattern'] for row in tables.table('sql'))})\b"
)
# Comments and white space before a statement say nothing about it.
_LEADING_COMMENTS = re.compile(r"(?:\s|--[^\n]*+|#[^\n]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/)*+")
# The comments and the beginning of a statement say what it does; a judgement for the time of a call.
_MAX_STATEMENT_CHARS = 8192
_ACTION = re.compile(r"[A-Za-z][\w.:/-]*")


def effect_of(traits: ToolTraits, arguments: object, line: ShellLine | None = None) -> Effect:
    """Return the intent of a call. An action named in the arguments takes precedence over the tool's name.

    `line` is the shell line that the arguments give, where it was read before.
    """
    tool_class = traits.tool_class
    if traits.keeps_list:
        return "note"
    if tool_class == "fallible":
        if traits.input_argument and isinstance(arguments, dict) and not arguments.get(traits.input_argument):
            return "poll"
        intent = (line or ShellLine(arguments)).intent
        return _OF_SHELL[intent] or ("write" if _is_sql_write(arguments) else "")
    if tool_class == "message":
        return "message"
    if tool_class in ("poll", "wait", "exempt"):
        return "poll" if tool_class == "poll" else ""
    if isinstance(arguments, dict) and not _ACTION_NAMES.isdisjoint(arguments):
        named = _named_action(arguments)
        if named is not None:
            return named
    if tool_class == "change" and not traits.starts_agents:
        return "step" if traits.steps or leads_on(arguments) else "write"
    return "write" if tool_class == "other" and _is_sql_write(arguments) else ""


def plain_effect(effect: Effect) -> Effect:
    """Return the intent of a call as settings see it that count and compare literally."""
    return "" if effect == "note" else "write" if effect == "step" else effect


def counts_by_receipt(effect: str, policy: PolicySettings) -> bool:
    """Return whether a call sends or changes something, so that its identical call again counts by what it does."""
    return effect in COUNTED and not policy.reads_plainly


def names_nothing(arguments: object) -> bool:
    """Return whether all arguments of a call are empty, like the file of an edit: it changes nothing.

    A call without arguments needs none.
    """
    return isinstance(arguments, dict) and bool(arguments) and not any(arguments.values())


def _named_action(arguments: Mapping[str, object]) -> Effect | None:
    """Return the intent of the action that a dispatching tool is given; None if it is unknown."""
    for name in _ACTION_FIELDS:
        value = arguments.get(name)
        if not isinstance(value, str) or len(value) > _MAX_ACTION_CHARS or not _ACTION.fullmatch(value):
            continue
        lowered = value.lower()
        if lowered in _OF_ACTIONS:
            return _OF_ACTIONS[lowered]
        intent = intent_of(words_of(value))
        if intent:
            return "write" if intent == "write" else ""
    return None


def _is_sql_write(arguments: object) -> bool:
    if not isinstance(arguments, dict):
        return isinstance(arguments, str) and _writes(arguments)
    for name in _STATEMENT_FIELDS:
        text = arguments.get(name)
        if isinstance(text, str) and _writes(text):
            return True
    return False


def _writes(statement: str) -> bool:
    if len(statement) > _MAX_STATEMENT_CHARS:
        statement = statement[:_MAX_STATEMENT_CHARS]
    start = _LEADING_COMMENTS.match(statement).end()  # type: ignore[union-attr]
    return _SQL_WRITE.match(statement, start) is not None
