"""Reduces a call to what it asks for: without arguments that only comment on it, and with one name for every shell."""

from __future__ import annotations

from detection.engine import directories
from detection.engine.calls import Arguments
from detection.engine.tool_classes import ToolTraits

# Written anew with every call by a client's own instructions, whatever the tool.
_COMMENTS = frozenset(("task_progress", "toolAction", "toolSummary", "waitForPreviousTools"))
_COMMENTS_OF_READERS = _COMMENTS | {"explanation"}
# How a command is run, not which one.
_COMMENTS_OF_SHELLS = _COMMENTS_OF_READERS | {
    "description", "justification", "max_output_tokens", "requires_approval", "sandbox_permissions", "timeout",
    "timeout_ms", "timeout_seconds", "with_escalated_permissions", "yield_time_ms",
}  # fmt: skip
_COMMAND = "command"
_COMMAND_NAMES = ("cmd", "script")
_SHELL_OPTIONS = ("-c", "-lc", "-Command")
# By definition: the shell, its option and the command.
_MIN_SHELL_PARTS = 3
SHELL = "shell"


def essential(tool: str, arguments: Arguments, traits: ToolTraits, cwd: str = "") -> tuple[str, Arguments]:
    """Return tool and arguments as compared: `Bash{command, description}` and `exec_command{cmd}` are one call.

    A call that runs in a directory has it among its arguments, if the directory is known. Reads the names of the
    arguments once, and copies where something is dropped.
    """
    if not isinstance(arguments, dict):
        if cwd and traits.directory_arguments:
            arguments = {_COMMAND: arguments, directories.FIELD: cwd}
        return (SHELL if traits.is_shell else tool), arguments
    if traits.is_shell:
        kept = {name: value for name, value in arguments.items() if name not in _COMMENTS_OF_SHELLS}
        for name in _COMMAND_NAMES:
            if name in kept and _COMMAND not in kept:
                kept[_COMMAND] = kept.pop(name)
        command = kept.get(_COMMAND)
        if isinstance(command, list) and len(command) == _MIN_SHELL_PARTS and command[1] in _SHELL_OPTIONS:
            kept[_COMMAND] = command[2]
        return SHELL, directories.located(kept, traits.directory_arguments, cwd) if cwd else kept
    if cwd and traits.directory_arguments:
        arguments = directories.located(arguments, traits.directory_arguments, cwd)
    comments = _COMMENTS_OF_READERS if traits.tool_class in ("read", "poll", "fallible") else _COMMENTS
    if comments.isdisjoint(arguments):
        return tool, arguments
    return tool, {name: value for name, value in arguments.items() if name not in comments}
