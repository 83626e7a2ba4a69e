"""Reads shell lines: what they change, send, look at or search. The programs are in the table `shell`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from detection.engine import tables

ShellIntent = Literal["", "change", "look", "nothing", "search", "send", "sleep"]

_ROWS = tables.table("shell")
_VERBS: Mapping[str, Mapping[str, frozenset[str]]] = {
    program: {row["does"]: frozenset(row.get("verbs", ())) for row in _ROWS if program in row["programs"]}
    for program in sorted({program for row in _ROWS for program in row["programs"]})
}
"""By program, what it does and with which verbs; without any, it always does it."""
_OF_UNKNOWN: Mapping[str, frozenset[str]] = {}
_SENDS_ANYWHERE = frozenset(program for row in _ROWS if row.get("anywhere") for program in row["programs"])
# What an option says of these, and no verb.
_EDITORS = frozenset(("sed", "perl"))
_LIST = "ls"
_KNOWN = _VERBS.keys() | _EDITORS | {_LIST}
_PREFIXES, _SHELLS, _PREPARING = (
    frozenset(program for program, does in _VERBS.items() if what in does)
    for what in ("prefixes", "shells", "prepares")
)
_HAVE_VERBS = frozenset(
    program for program, does in _VERBS.items() if does.get("changes") or does.get("looks")
)
# Lines that only comment on the next one.
_COMMENTS = re.compile(r"(?m)^[ \t]*+#[^\n]*+\n?")
_SLEEPS = re.compile(r"(?:^|[;&|\n(]|\bdo\b)\s{0,9}sleep\s{1,9}[\d.$]")
_SEPARATOR = re.compile(r"[;&|\n(]+")
_REDIRECTED = re.compile(r"(?<![<>=\-0-9&])>{1,2}(?![>&=])\s*(?!/dev/null)[\w./~$\"'{-]")
_COMMAND_FIELDS = ("command", "cmd", "code", "script", "input", "commands")
# A script that is longer writes a file; a judgement for the time of a call, not measured.
_MAX_COMMAND_CHARS = 4096
# Programs, verbs and options stand at the beginning; a judgement for the same reason.
_MAX_WORDS = 8
_PROGRAM = re.compile(r"[A-Za-z][\w.+-]{0,31}")
_VERB = re.compile(r"[a-z][a-z-]{1,19}")


class ShellLine:
    """A shell line, taken apart once.

    Parameters
    ----------
    arguments : object
        Those of the call, or the line itself.

    Attributes
    ----------
    text : str
        The line without its comments, at most 4,096 characters; empty if none is given.
    commands : list of list of str
        The first words of each of its commands, beginning with the program.
    """

    __slots__ = ("_arguments", "commands", "text")

    def __init__(self, arguments: object) -> None:
        self._arguments = arguments
        self.text = _text_of(arguments)
        self.commands = [words for part in _SEPARATOR.split(self.text) if (words := _words_of(part))]

    @property
    def intent(self) -> ShellIntent:
        """What it is meant to do.

        It changes something here, sends or starts something elsewhere, sleeps, only reads or searches, says nothing (an
        empty line only asks for what a running command prints), or is unknown.
        """
        text, commands = self.text, self.commands
        if not text or text.isspace():
            return "nothing" if _gives_line(self._arguments) else ""
        known = [words for words in commands if words[0] in _KNOWN]
        if any(map(_sends, known)):
            return "send"
        if (">" in text and _REDIRECTED.search(text)) or any(map(_changes, known)):
            return "change"
        if "sleep" in text and _SLEEPS.search(text):
            return "sleep"
        if not commands or len(known) < len(commands) or not all(map(_looks, known)):
            return ""
        return "search" if any(map(_searches, known)) else "look"

    @property
    def program(self) -> str:
        """Its program, with a verb where that has verbs: ``pytest``, ``git push``; empty if unknown.

        Changes of the directory and other commands that only prepare the next one are skipped.
        """
        for words in self.commands:
            if len(words) > 2 and words[0] in _SHELLS and words[1].startswith("-"):
                words = [words[2].lstrip("'\""), *words[3:]]
            program = words[0].rpartition("/")[2]
            if not _PROGRAM.fullmatch(program) or program in _PREPARING:
                continue
            has_verb = program in _HAVE_VERBS
            verb = next((word for word in words[1:3] if has_verb and _VERB.fullmatch(word)), "")
            return f"{program} {verb}".strip()
        return ""


def _text_of(arguments: object) -> str:
    command: object = arguments
    if isinstance(arguments, dict):
        command = _line_in(arguments, "")
    if isinstance(command, list):
        command = " ".join(str(part) for part in command)
    if not isinstance(command, str):
        return ""
    command = command[:_MAX_COMMAND_CHARS]
    return _COMMENTS.sub("", command) if "#" in command else command


def _line_in(arguments: Mapping[str, object], default: object) -> object:
    for name in _COMMAND_FIELDS:
        if name in arguments:
            return arguments[name]
    return default


def _gives_line(arguments: object) -> bool:
    """Return whether a command line is given, even an empty one, and nothing else that could be meant."""
    if not isinstance(arguments, dict):
        return False
    line = _line_in(arguments, None)
    return isinstance(line, str) and not line.strip() and not arguments.get("restart")


def _words_of(part: str) -> list[str]:
    """Return the first words of a command, starting with its program."""
    words = part.split(None, _MAX_WORDS)
    while words and (words[0] in _PREFIXES or ("=" in words[0] and words[0][0] not in "-'\"")):
        words = words[1:]
    return words


def _does(what: str, words: list[str], places: list[str]) -> bool:
    """Return whether a command does something: always, or by a verb at these places."""
    verbs = _VERBS.get(words[0], _OF_UNKNOWN).get(what)
    return verbs is not None and (not verbs or not verbs.isdisjoint(places))


def _looks(words: list[str]) -> bool:
    if words[0] == "sed":
        return "-n" in words[1:3]
    return _searches(words) or _does("looks", words, words[1:3])


def _searches(words: list[str]) -> bool:
    """Return whether a command looks for something that may not be there: it then prints nothing."""
    if words[0] == _LIST:
        return any(sign in word for word in words[1:] for sign in "*?[")
    return _does("searches", words, words[1:3])


def _sends(words: list[str]) -> bool:
    verbs = _VERBS.get(words[0], _OF_UNKNOWN).get("sends")
    if not verbs:
        return verbs is not None
    places = words[1:] if words[0] in _SENDS_ANYWHERE else words[1:4]
    return not verbs.isdisjoint(places) and not _looks(words)


def _changes(words: list[str]) -> bool:
    if words[0] in _EDITORS:
        return any(word.startswith("-") and "i" in word for word in words[1:4])
    return _does("changes", words, words[1:4])
