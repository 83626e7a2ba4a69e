"""Tool classes: what a repeated call of a tool means.

`read` reads, `change` changes something, `poll` asks for a state that others change, `wait` lets time pass, `message`
writes to someone, `fallible` often fails in normal work (a shell), and `exempt` is never judged.

The table contains whole words, never parts: `preview_theme` is no `view`. A project's tool rules override it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

ToolClass = Literal["other", "read", "change", "poll", "wait", "message", "fallible", "exempt"]

TOOL_CLASSES: tuple[ToolClass, ...] = (
    "other",
    "read",
    "change",
    "poll",
    "wait",
    "message",
    "fallible",
    "exempt",
)


@dataclass(frozen=True, slots=True)
class ToolTraits:
    """Properties of a tool.

    Attributes
    ----------
    tool_class : str
        One of `TOOL_CLASSES`.
    ignore_arguments : tuple of str
        Dotted argument paths that do not count; see `identity`.
    volatile_result_fields : tuple of str
        Names of result fields that change without meaning.
    """

    tool_class: ToolClass = "other"
    ignore_arguments: tuple[str, ...] = ()
    volatile_result_fields: tuple[str, ...] = ()

    @property
    def neutral(self) -> bool:
        """Whether calls are ignored, as if they had not been made."""
        return self.tool_class in ("wait", "exempt")

    def with_rule(
        self,
        tool_class: ToolClass | None,
        ignore_arguments: tuple[str, ...],
        volatile_result_fields: tuple[str, ...],
        *,
        exempt: bool,
    ) -> ToolTraits:
        """Return these traits under one more rule: its class replaces, its lists are appended."""
        return replace(
            self,
            tool_class="exempt" if exempt else tool_class or self.tool_class,
            ignore_arguments=(*self.ignore_arguments, *ignore_arguments),
            volatile_result_fields=(*self.volatile_result_fields, *volatile_result_fields),
        )


PLAIN_TOOL = ToolTraits()
"""A tool without known properties."""

SHIPPED_CLASSES: Mapping[ToolClass, frozenset[str]] = MappingProxyType(
    {
        "read": frozenset(
            [
                "read",
                "read_file",
                "read_files",
                "read_many_files",
                "readfile",
                "view",
                "view_file",
                "open_file",
                "cat",
                "list_dir",
                "list_directory",
                "ls",
                "glob",
                "grep",
                "grep_search",
                "file_search",
                "search_file_content",
                "codebase_search",
                "web_search",
                "websearch",
                "web_fetch",
                "webfetch",
                "fetch_url",
            ]
        ),
        "change": frozenset(
            [
                "write",
                "write_file",
                "writefile",
                "write_to_file",
                "create_file",
                "edit",
                "edit_file",
                "editfile",
                "multiedit",
                "multi_edit",
                "patch",
                "apply_patch",
                "apply_diff",
                "replace",
                "str_replace",
                "search_replace",
                "search_and_replace",
                "insert_content",
                "replace_in_file",
                "insert_edit_into_file",
                "delete_file",
                "move_file",
                "rename_file",
                "notebookedit",
                "notebook_edit",
                "append_file",
                "create_directory",
                "mkdir",
            ]
        ),
        "poll": frozenset(
            [
                "poll",
                "process_poll",
                "process_manage",
                "job_status",
                "task_status",
                "get_status",
                "check_status",
                "get_job_status",
                "bash_output",
                "bashoutput",
                "read_process",
                "get_command_status",
                "command_status",
                "task_output",
                "taskoutput",
                "wait_for_job",
                "get_run_status",
                "get_task_status",
            ]
        ),
        "wait": frozenset(["sleep", "wait", "pause", "delay", "wait_seconds", "wait_for_seconds"]),
        "message": frozenset(
            [
                "send",
                "message",
                "send_message",
                "sendmessage",
                "send_email",
                "reply",
                "respond",
                "notify",
                "post_message",
                "message_user",
                "ask_user",
                "ask_followup_question",
            ]
        ),
        "fallible": frozenset(
            [
                "bash",
                "shell",
                "terminal",
                "exec",
                "execute",
                "run",
                "run_shell",
                "run_command",
                "run_shell_command",
                "run_terminal_cmd",
                "execute_command",
                "execute_bash",
                "exec_command",
                "local_shell",
                "powershell",
                "python",
                "ipython",
                "execute_code",
                "execute_python",
                "run_in_terminal",
                "runinterminal",
                "execute_ipython_cell",
                "code_interpreter",
            ]
        ),
        "exempt": frozenset(["think"]),
    }
)
"""Tool names by class, in lower case with underscores. Unknown names are `other`."""

_CLASS_OF: dict[str, ToolClass] = {name: known for known, names in SHIPPED_CLASSES.items() for name in names}

_VERBS: Mapping[str, ToolClass] = {
    **dict.fromkeys(("write", "edit", "create", "update", "delete", "remove", "insert", "append"), "change"),
    **dict.fromkeys(("patch", "rename", "move", "cancel", "book"), "change"),
    **dict.fromkeys(("send", "notify", "reply"), "message"),
    **dict.fromkeys(("read", "view", "list", "search", "grep", "find", "fetch", "lookup"), "read"),
    "poll": "poll",
}

_RUNNER_FIELDS = (
    "execution_count",
    "duration",
    "durationMs",
    "duration_ms",
    "duration_seconds",
    "elapsed",
    "elapsed_ms",
    "cwd",
    "pid",
)
_MESSAGE_FIELDS = ("id", "message_id", "messageId", "ts", "timestamp", "sent_at", "created_at")

# The prefix of a server, as in `mcp__files__read_file`, `functions.bash` and `fs/read_file`.
_PREFIX = re.compile(r"^.*(?:__|[./:])")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def shipped_traits(tool: str) -> ToolTraits:
    """Return the traits of a tool by its name alone."""
    bare = _PREFIX.sub("", tool)[:80]
    name = _HUMP.sub("_", bare).replace("-", "_").lower()
    found = _CLASS_OF.get(bare.lower()) or _CLASS_OF.get(name) or _by_words(name.split("_"))
    volatile: tuple[str, ...] = ()
    if found == "fallible":
        volatile = _RUNNER_FIELDS
    elif found == "message":
        volatile = _MESSAGE_FIELDS
    return ToolTraits(found, (), volatile)


def _by_words(words: list[str]) -> ToolClass:
    """Return the class by a verb as the first word, or `status` as the last."""
    if words[-1] == "status" and words[0] not in _VERBS:
        return "poll"
    return _VERBS.get(words[0], "other") if len(words) > 1 else "other"
