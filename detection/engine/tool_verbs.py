"""Derives from the words of a name whether a tool or an action reads, writes, or sends a message."""

from __future__ import annotations

import re
from typing import Literal

from detection.engine import tables

Intent = Literal["", "read", "write", "message"]


def _words(meaning: str) -> frozenset[str]:
    return frozenset(tables.words("verbs", meaning=meaning))


MESSAGE_VERBS = _words("sends")
LOOKS = _words("looks")
"""Verbs and nouns of tools that read or navigate."""

WRITE_VERBS = _words("writes")
"""Verbs of tools that change something."""

PURE_READS = _words("reads")
"""Verbs that make the class `read`, whose changing results are never warned about."""

_MOVES, _OWN_STATE = _words("moves"), _words("plans")
_READ_VERBS = LOOKS | _words("checks")
_NOUNS = "|".join(sorted(_words("things"), key=len, reverse=True))
_GLUED = re.compile(
    rf"\A({'|'.join(sorted(_READ_VERBS | WRITE_VERBS | MESSAGE_VERBS, key=len, reverse=True))})(?:{_NOUNS})s?"
)

# The prefix of a server, as in `mcp__files__read_file`, `functions.bash` and `fs/read_file`, or a tool that dispatches.
PREFIX = re.compile(r"^.*(?:__|[./:]| → )")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MAX_NAME_CHARACTERS = 80
_MAX_MOVE_CHARACTERS = 40


def bare_name(name: str) -> str:
    """Return a tool's name without the prefix of a server, at most 80 characters."""
    return PREFIX.sub("", name)[:_MAX_NAME_CHARACTERS]


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case: `mcp__files__readFile` consists of `read` and `file`."""
    return _HUMP.sub("_", bare_name(name)).replace("-", "_").lower().split("_")


def intent_of(words: list[str]) -> Intent:
    """Return the intent that a name implies: a verb in any position counts, also within a word; reading verbs win."""
    if not _OWN_STATE.isdisjoint(words):
        return ""
    if len(words) == 1 and (glued := _GLUED.fullmatch(words[0])):
        words = [glued[1]]
    if not _READ_VERBS.isdisjoint(words):
        return "read"
    if words[0] in MESSAGE_VERBS:
        return "message"
    return "" if WRITE_VERBS.isdisjoint(words) else "write"


def moves_on(tool: str, arguments: object) -> bool:
    """Return whether a call pages or scrolls, so that an identical call requests something else."""
    if not _MOVES.isdisjoint(words_of(tool)):
        return True
    values = arguments.values() if isinstance(arguments, dict) else (arguments,)
    return any(
        not _MOVES.isdisjoint(words_of(value.replace(" ", "_")))
        for value in values
        if isinstance(value, str) and len(value) <= _MAX_MOVE_CHARACTERS
    )
