"""Whether a call means to alter something: a tool of class `change`, or a shell command that writes.

Every link of a command chain is looked at. What a change does to evidence belongs to the detectors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from detection.engine.tool_classes import ToolClass

# Shell commands that alter files, repositories, packages or services, by their first words.
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
_LINK = re.compile(r"[;&|\n(]+")
_IN_FRONT = frozenset(("sudo", "xargs", "then", "do", "else", "time", "nohup", "env"))
_REDIRECTED = re.compile(r"(?<![<>=\-0-9&])>{1,2}(?![>&=])\s*(?!/dev/null)[\w./~$\"'{-]")
_COMMAND_FIELDS = ("command", "cmd", "code", "script", "input", "commands")
_MAX_COMMAND_CHARS = 4096


def changes_something(tool_class: ToolClass, arguments: object) -> bool:
    """Whether this call means to alter something: a tool of class `change`, or a shell command that writes."""
    if tool_class == "change":
        return True
    if tool_class != "fallible":
        return False
    command: object = arguments
    if isinstance(arguments, Mapping):
        command = next((arguments[name] for name in _COMMAND_FIELDS if name in arguments), "")
    if isinstance(command, list):
        command = " ".join(str(part) for part in command)
    if not isinstance(command, str):
        return False
    command = command[:_MAX_COMMAND_CHARS]
    if ">" in command and _REDIRECTED.search(command):
        return True
    return any(_link_changes(link.split(None, 8)) for link in _LINK.split(command))


def _link_changes(words: list[str]) -> bool:
    """Whether one link of a command chain alters something."""
    while words and (words[0] in _IN_FRONT or ("=" in words[0] and words[0][0] not in "-'\"")):
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
