"""Recognises shell commands that change something."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
_SEPARATOR = re.compile(r"[;&|\n(]+")
_PREFIXES = frozenset(("sudo", "xargs", "then", "do", "else", "time", "nohup", "env"))
_REDIRECTED = re.compile(r"(?<![<>=\-0-9&])>{1,2}(?![>&=])\s*(?!/dev/null)[\w./~$\"'{-]")
_COMMAND_FIELDS = ("command", "cmd", "code", "script", "input", "commands")
_MAX_COMMAND_CHARS = 4096


def changes_something(arguments: object) -> bool:
    """Return whether any command of a shell line changes something."""
    command: object = arguments
    if isinstance(arguments, dict):
        command = next((arguments[name] for name in _COMMAND_FIELDS if name in arguments), "")
    if isinstance(command, list):
        command = " ".join(str(part) for part in command)
    if not isinstance(command, str):
        return False
    command = command[:_MAX_COMMAND_CHARS]
    if ">" in command and _REDIRECTED.search(command):
        return True
    return any(_command_changes(part.split(None, 8)) for part in _SEPARATOR.split(command))


def _command_changes(words: list[str]) -> bool:
    """Return whether one command of a shell line changes something."""
    while words and (words[0] in _PREFIXES or ("=" in words[0] and words[0][0] not in "-'\"")):
        words = words[1:]
    if not words:
        return False
    program = words[0]
    if program in _CHANGING_PROGRAMS:
        return True
    if program in ("sed", "perl"):
        return any(word.startswith("-") and "i" in word for word in words[1:4])
    verbs = _CHANGING_VERBS.get(program)
    return verbs is not None and not verbs.isdisjoint(words[1:4])
