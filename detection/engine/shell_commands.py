"""Recognises shell commands that change something, only read, or search. The programs are in the table `shell`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from detection.engine import tables


def _programs(does: str) -> frozenset[str]:
    """Return the programs that always do something."""
    return frozenset(
        name for row in tables.rows("shell", does=does) if "verbs" not in row for name in row["programs"]
    )


def _verbs(does: str) -> Mapping[str, frozenset[str]]:
    """Return the verbs with which programs do something."""
    found = [row for row in tables.rows("shell", does=does) if "verbs" in row]
    return {name: frozenset(row["verbs"]) for row in found for name in row["programs"]}


_CHANGING_PROGRAMS, _CHANGING_VERBS = _programs("changes"), _verbs("changes")
_SENDING_PROGRAMS, _SENDING_VERBS = _programs("sends"), _verbs("sends")
_SENDS_ANYWHERE = frozenset(
    name for row in tables.rows("shell", does="sends") if row.get("anywhere") for name in row["programs"]
)
_LOOKING_PROGRAMS, _LOOKING_VERBS = _programs("looks"), _verbs("looks")
_SEARCHING_PROGRAMS, _SEARCHING_VERBS = _programs("searches"), _verbs("searches")
_PREPARING_PROGRAMS, _PREFIXES, _SHELLS = map(_programs, ("prepares", "prefixes", "shells"))
# Lines that only comment on the next one.
_COMMENTS = re.compile(r"(?m)^[ \t]*+#[^\n]*+\n?")
_SLEEPS = re.compile(r"(?:^|[;&|\n(]|\bdo\b)\s{0,9}sleep\s{1,9}[\d.$]")
_SEPARATOR = re.compile(r"[;&|\n(]+")
_REDIRECTED = re.compile(r"(?<![<>=\-0-9&])>{1,2}(?![>&=])\s*(?!/dev/null)[\w./~$\"'{-]")
_COMMAND_FIELDS = ("command", "cmd", "code", "script", "input", "commands")
# A script that is longer writes a file; a judgement for the time of a call, not measured.
_MAX_COMMAND_CHARS = 4096
_PROGRAM = re.compile(r"[A-Za-z][\w.+-]{0,31}")
_VERB = re.compile(r"[a-z][a-z-]{1,19}")


ShellIntent = Literal["", "change", "look", "nothing", "search", "send", "sleep"]


def intent_of_line(arguments: object) -> ShellIntent:
    """Return the intent of a shell line.

    It changes something here, sends or starts something elsewhere, sleeps, only reads or searches, says nothing (an
    empty line only asks for what a running command prints), or is unknown.
    """
    command = _command_of(arguments)
    if not command or command.isspace():
        return "nothing" if _gives_line(arguments) else ""
    commands = [words for part in _SEPARATOR.split(command) if (words := _words_of(part))]
    if any(map(_sends, commands)):
        return "send"
    if (">" in command and _REDIRECTED.search(command)) or any(map(_changes, commands)):
        return "change"
    if "sleep" in command and _SLEEPS.search(command):
        return "sleep"
    if not (commands and all(map(_looks, commands))):
        return ""
    return "search" if any(map(_searches, commands)) else "look"


def program_of(arguments: object) -> str:
    """Return the program of a shell line, with its verb where it has verbs: ``pytest``, ``git push``; empty if unknown.

    Changes of the directory and other commands that only prepare the next one are skipped.
    """
    for part in _SEPARATOR.split(_command_of(arguments)):
        words = _words_of(part)
        if len(words) > 2 and words[0] in _SHELLS and words[1].startswith("-"):
            words = [words[2].lstrip("'\""), *words[3:]]
        program = words[0].rpartition("/")[2] if words else ""
        if not _PROGRAM.fullmatch(program) or program in _PREPARING_PROGRAMS:
            continue
        has_verb = program in _CHANGING_VERBS or program in _LOOKING_VERBS
        verb = next((word for word in words[1:3] if has_verb and _VERB.fullmatch(word)), "")
        return f"{program} {verb}".strip()
    return ""


def _command_of(arguments: object) -> str:
    command: object = arguments
    if isinstance(arguments, dict):
        command = next((arguments[name] for name in _COMMAND_FIELDS if name in arguments), "")
    if isinstance(command, list):
        command = " ".join(str(part) for part in command)
    if not isinstance(command, str):
        return ""
    command = command[:_MAX_COMMAND_CHARS]
    return _COMMENTS.sub("", command) if "#" in command else command


def _gives_line(arguments: object) -> bool:
    """Return whether a command line is given, even an empty one, and nothing else that could be meant."""
    if not isinstance(arguments, dict):
        return False
    line = next((arguments[name] for name in _COMMAND_FIELDS if name in arguments), None)
    return isinstance(line, str) and not line.strip() and not arguments.get("restart")


def _words_of(part: str) -> list[str]:
    """Return the first words of a command, starting with its program."""
    words = part.split(None, 8)
    while words and (words[0] in _PREFIXES or ("=" in words[0] and words[0][0] not in "-'\"")):
        words = words[1:]
    return words


def _looks(words: list[str]) -> bool:
    program = words[0]
    if program == "sed":
        return "-n" in words[1:3]
    if _searches(words):
        return True
    verbs = _LOOKING_VERBS.get(program)
    return program in _LOOKING_PROGRAMS if verbs is None else not verbs.isdisjoint(words[1:3])


def _searches(words: list[str]) -> bool:
    """Return whether a command looks for something that may not be there: it then prints nothing."""
    program = words[0]
    if program == "ls":
        return any(sign in word for word in words[1:] for sign in "*?[")
    verbs = _SEARCHING_VERBS.get(program)
    return program in _SEARCHING_PROGRAMS if verbs is None else not verbs.isdisjoint(words[1:3])


def _sends(words: list[str]) -> bool:
    program = words[0]
    if program in _SENDING_PROGRAMS:
        return True
    verbs = _SENDING_VERBS.get(program)
    if verbs is None:
        return False
    place = words[1:] if program in _SENDS_ANYWHERE else words[1:4]
    return not verbs.isdisjoint(place) and not _looks(words)


def _changes(words: list[str]) -> bool:
    program = words[0]
    if program in _CHANGING_PROGRAMS:
        return True
    if program in ("sed", "perl"):
        return any(word.startswith("-") and "i" in word for word in words[1:4])
    verbs = _CHANGING_VERBS.get(program)
    return verbs is not None and not verbs.isdisjoint(words[1:4])
