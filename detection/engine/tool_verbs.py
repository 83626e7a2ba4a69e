"""Derives from the words of a name whether a tool or an action reads, writes, or sends a message."""

from __future__ import annotations

import re
from typing import Literal

from detection.engine import tables

Intent = Literal["", "read", "write", "message"]


def _words(meaning: str) -> frozenset[str]:
    return frozenset(tables.words("verbs", meaning=meaning))


MESSAGE_VERBS = _words("sends")
_SENDS_ANYWHERE = frozenset(
    word for row in tables.rows("verbs", meaning="sends") if row.get("anywhere") for word in row["words"]
)
LOOKS = _words("looks")
"""Verbs and nouns of tools that read or navigate."""

WRITE_VERBS = _words("writes")
"""Verbs of tools that change something."""

PURE_READS = _words("reads")
"""Verbs that make the class `read`, whose changing results are never warned about."""

_BEGINS = _words("begins")
WAITS = _words("waits") - frozenset(
    word for row in tables.rows("verbs", meaning="waits") if row.get("first") for word in row["words"]
)
"""Verbs of tools that wait for something."""

CHECKS_FIRST = _words("waits") - WAITS
"""Verbs that ask whether something is there, as the first of several words."""

LOGS = _words("logs")
"""Nouns of tools that read errors of others."""

_OPENS, _RUNS = _words("opens"), _words("runs")
STEPS = _words("steps")
"""Verbs and nouns of tools of which an identical call does something else."""

_ACTS = _words("acts")
_MOVES, _OWN_STATE = _words("moves"), _words("plans")
_LEADS = _words("leads")
_LEADING_ARGUMENTS = tables.words("verbs", "arguments", meaning="leads")
_MAKES = _words("makes")
_DONE = {
    word: form
    for row in tables.rows("verbs", meaning="done")
    for word, form in zip(row["words"], row["forms"], strict=True)
}
# What follows is no longer the thing itself: `add_item_to_cart`.
_NOT_A_THING = frozenset(
    ("or", "and", "to", "in", "into", "for", "of", "with", "from", "by", "on", "via", "new")
)
_READ_VERBS = LOOKS | _words("checks")
_NOUNS = "|".join(sorted(_words("things"), key=len, reverse=True))
_GLUED = re.compile(
    rf"\A({'|'.join(sorted(_READ_VERBS | WRITE_VERBS | MESSAGE_VERBS, key=len, reverse=True))})(?:{_NOUNS})s?"
)

# The prefix of a server, as in `mcp__files__read_file`, `functions.bash` and `fs/read_file`, or a tool that dispatches.
PREFIX = re.compile(r"^.*(?:__|[./:]| → )")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Interfaces of models commonly allow names of 64 characters; a judgement.
_MAX_NAME_CHARACTERS = 80
# Words such as `next` and `scroll_down` are shorter, and texts longer; a judgement.
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
    if words[0] in MESSAGE_VERBS or not _SENDS_ANYWHERE.isdisjoint(words):
        return "message"
    begins = len(words) > 1 and words[0] in _BEGINS
    return "write" if begins or not WRITE_VERBS.isdisjoint(words) else ""


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


def moves_by_name(tool: str) -> bool:
    """Return whether a tool pages, scrolls or takes the next item, by its name."""
    return not (_MOVES | STEPS).isdisjoint(words_of(tool))


def acts_on_page(tool: str) -> bool:
    """Return whether a tool clicks, types or the like, by its name."""
    return not _ACTS.isdisjoint(words_of(tool))


def opens_file(tool: str) -> bool:
    """Return whether a tool reads a file, by its name."""
    words = words_of(tool)
    return not _OPENS.isdisjoint(words) and _RUNS.isdisjoint(words)


def leads_on(arguments: object) -> bool:
    """Return whether an argument says to go one step on, so that an identical call does something else."""
    if not isinstance(arguments, dict):
        return False
    for name in _LEADING_ARGUMENTS:
        value = arguments.get(name)
        if isinstance(value, str) and value.lower() in _LEADS:
            return True
    return False


def what_was_made(tool: str, count: int) -> str:
    """Return what so many calls of a tool made, by its name: "3 orders were placed"; empty if it does not tell."""
    words = words_of(tool)
    verb = next((place for place, word in enumerate(words) if word in _MAKES), None)
    if verb is None:
        return ""
    thing: list[str] = []
    for word in words[verb + 1 :]:
        if word in _NOT_A_THING:
            break
        thing.append(word)
    if not thing or not all(word.isalpha() for word in thing):
        return ""
    done = _DONE.get(words[verb]) or (words[verb] + ("d" if words[verb][-1] == "e" else "ed"))
    name = " ".join(thing)
    return f"1 {name} was {done}" if count == 1 else f"{count} {_plural(name)} were {done}"


def _plural(noun: str) -> str:
    if noun[-1] == "s" and noun[-2:] != "ss":
        return noun
    if noun[-1] == "y" and noun[-2:-1] not in ("a", "e", "o", "u"):
        return f"{noun[:-1]}ies"
    return noun + ("es" if noun[-2:] in ("ss", "sh", "ch") or noun[-1] == "x" else "s")
