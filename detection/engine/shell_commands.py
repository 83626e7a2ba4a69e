"""Recognises shell commands that change something."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

# Programs that change files, repositories, packages or services.
_CHANGING_PROGRAMS = frozenset(
    [
        "rm",
        "mv",
        "cp",
        "mkdir",
        "rmdir",
        "touch",
        "tee",
        "chmod",
        "chown",
        "ln",
        "patch",
        "dd",
        "truncate",
        "install",
        "unzip",
        "kill",
        "pkill",
    ]
)
_CHANGING_VERBS: Mapping[str, frozenset[str]] = {
    "git": frozenset(
        [
            "add",
            "commit",
            "apply",
            "checkout",
            "restore",
            "reset",
            "stash",
            "merge",
            "rebase",
            "push",
            "pull",
            "clone",
            "revert",
            "cherry-pick",
            "mv",
            "rm",
            "tag",
            "switch",
        ]
    ),
    "kubectl": frozenset(["apply", "delete", "create", "scale", "patch", "rollout"]),
    "systemctl": frozenset(["start", "stop", "restart", "reload", "enable", "disable"]),
    "service": frozenset(["start", "stop", "restart", "reload"]),
    **dict.fromkeys(
        [
            "pip",
            "pip3",
            "npm",
            "pnpm",
            "yarn",
            "cargo",
            "go",
            "apt",
            "apt-get",
            "brew",
            "conda",
            "uv",
            "poetry",
        ],
        frozenset(["install", "add", "remove", "uninstall", "update", "upgrade", "ci", "sync"]),
    ),
}
# Programs that only show something.
_LOOKING_PROGRAMS = frozenset(
    [
        "ls",
        "cat",
        "head",
        "tail",
        "grep",
        "egrep",
        "rg",
        "find",
        "fd",
        "pwd",
        "wc",
        "which",
        "whereis",
        "echo",
        "tree",
        "stat",
        "file",
        "env",
        "ps",
        "df",
        "du",
        "date",
        "whoami",
        "id",
        "uname",
        "less",
        "more",
        "sort",
        "uniq",
        "cut",
        "awk",
        "jq",
        "diff",
        "cmp",
        "cd",
        "true",
        "test",
    ]
)
_LOOKING_VERBS: Mapping[str, frozenset[str]] = {
    "git": frozenset(("status", "diff", "log", "show", "branch", "rev-parse", "ls-files", "blame", "remote")),
    "kubectl": frozenset(("get", "describe", "logs")),
    "docker": frozenset(("ps", "logs", "images", "inspect")),
    "systemctl": frozenset(("status", "is-active", "show")),
}
_SLEEPS = re.compile(r"(?:^|[;&|\n(]|\bdo\b)\s{0,9}sleep\s{1,9}[\d.$]")
_SEPARATOR = re.compile(r"[;&|\n(]+")
_PREFIXES = frozenset(("sudo", "xargs", "then", "do", "else", "time", "nohup", "env"))
_REDIRECTED = re.compile(r"(?<![<>=\-0-9&])>{1,2}(?![>&=])\s*(?!/dev/null)[\w./~$\"'{-]")
_COMMAND_FIELDS = ("command", "cmd", "code", "script", "input", "commands")
_MAX_COMMAND_CHARS = 4096
_PROGRAM = re.compile(r"[A-Za-z][\w.+-]{0,31}")
_VERB = re.compile(r"[a-z][a-z-]{1,19}")
_SHELLS = frozenset(("bash", "sh", "zsh"))
_PREPARING_PROGRAMS = frozenset(("cd", "export", "set", "source", "pushd", "popd", "true", "echo"))


ShellIntent = Literal["", "change", "look", "sleep"]


def intent_of_line(arguments: object) -> ShellIntent:
    """Return the intent of a shell line: it changes something, sleeps, only reads, or is unknown."""
    command = _command_of(arguments)
    if ">" in command and _REDIRECTED.search(command):
        return "change"
    commands = [words for part in _SEPARATOR.split(command) if (words := _words_of(part))]
    if any(map(_changes, commands)):
        return "change"
    if "sleep" in command and _SLEEPS.search(command):
        return "sleep"
    return "look" if commands and all(map(_looks, commands)) else ""


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
    return command[:_MAX_COMMAND_CHARS] if isinstance(command, str) else ""


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
    verbs = _LOOKING_VERBS.get(program)
    return program in _LOOKING_PROGRAMS if verbs is None else not verbs.isdisjoint(words[1:3])


def _changes(words: list[str]) -> bool:
    program = words[0]
    if program in _CHANGING_PROGRAMS:
        return True
    if program in ("sed", "perl"):
        return any(word.startswith("-") and "i" in word for word in words[1:4])
    verbs = _CHANGING_VERBS.get(program)
    return verbs is not None and not verbs.isdisjoint(words[1:4])
