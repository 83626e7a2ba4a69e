"""Tool classes: what a repeated call of a tool means.

`read` reads, `change` changes something, `poll` asks for a state that changes elsewhere, `wait` lets time
pass, `message` writes to someone, `fallible` often fails in normal use (a shell), and `exempt` is never judged.

The table contains whole words, never parts: `preview_theme` is not a `view`. Other names are judged by their verbs, see
`tool_verbs`. A project's tool rules override both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from detection.engine import tables
from detection.engine.directories import ARGUMENTS_OF
from detection.engine.spawning import starts_agents
from detection.engine.task_lists import TOOLS
from detection.engine.tool_verbs import (
    CHECKS_FIRST,
    LOGS,
    LOOKS,
    MESSAGE_VERBS,
    PURE_READS,
    STEPS,
    WAITS,
    WRITE_VERBS,
    bare_name,
    intent_of,
    opens_file,
    words_of,
)

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
    reads : bool
        Whether the tool reads or navigates, by its class or a verb of its name.
    is_shell : bool
        Whether the tool runs a command line; all such tools are one.
    input_argument : str
        Argument of a tool that sends input to a running process; without it, the tool only polls.
    directory_arguments : tuple of str
        Arguments that may name the directory in which a call runs; empty for tools that run in none.
    keeps_list : bool
        Whether the tool keeps the agent's own list of tasks, see `task_lists`.
    starts_agents : bool
        Whether calls of the tool start sub-agents, see `spawning`.
    checks : bool
        Whether the tool asks whether something is there, by its name: to ask again is to wait.
    steps : bool
        Whether an identical call does something else each time, by a word of the name: `next`, `pop`, `increment`.
    opens_file : bool
        Whether the tool reads a file, by its name.
    reads_errors : bool
        Whether what the tool reads may begin with an error, by its name: logs, crashes.
    """

    tool_class: ToolClass = "other"
    ignore_arguments: tuple[str, ...] = ()
    volatile_result_fields: tuple[str, ...] = ()
    reads: bool = False
    is_shell: bool = False
    input_argument: str = ""
    directory_arguments: tuple[str, ...] = ()
    keeps_list: bool = False
    starts_agents: bool = False
    checks: bool = False
    steps: bool = False
    opens_file: bool = False
    reads_errors: bool = False

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
            reads=tool_class == "read" if tool_class else self.reads,
        )


PLAIN_TOOL = ToolTraits()
"""A tool without known properties."""

SHIPPED_CLASSES: Mapping[ToolClass, frozenset[str]] = MappingProxyType(
    {row["class"]: frozenset(row["names"]) for row in tables.table("tool_classes") if "class" in row}
)
"""Tool names by class, in lower case with underscores. Unknown names are `other`."""

_CLASS_OF: dict[str, ToolClass] = {name: known for known, names in SHIPPED_CLASSES.items() for name in names}

# What begins the name of a tool that does not ask for a state although its name ends in `status`.
_NO_STATES = (
    PURE_READS
    | MESSAGE_VERBS
    | {"set", "update", "change", "modify", "edit", "patch", "write", "create", "delete"}
)

_SHELLS = frozenset(tables.words("tool_classes", "names", trait="shell"))
_INPUT_ARGUMENTS: Mapping[str, str] = {
    name: row["argument"] for row in tables.rows("tool_classes", trait="input") for name in row["names"]
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


def shipped_traits(tool: str) -> ToolTraits:
    """Return the traits of a tool by its name alone."""
    words = words_of(tool)
    found = _CLASS_OF.get(bare_name(tool).lower()) or _CLASS_OF.get("_".join(words)) or _by_words(words)
    volatile: tuple[str, ...] = ()
    if found == "fallible":
        volatile = _RUNNER_FIELDS
    elif found == "message":
        volatile = _MESSAGE_FIELDS
    reads = found == "read" or (found == "other" and not LOOKS.isdisjoint(words))
    name = "_".join(words)
    is_shell = name in _SHELLS
    directory = ARGUMENTS_OF.get("shell" if is_shell else name, ())
    keeps_list = bare_name(tool) in TOOLS or name in TOOLS
    return ToolTraits(
        found,
        (),
        volatile,
        reads,
        is_shell,
        _INPUT_ARGUMENTS.get(name, ""),
        directory,
        keeps_list,
        starts_agents(tool),
        words[0] in CHECKS_FIRST and len(words) > 1,
        not STEPS.isdisjoint(words),
        opens_file(tool),
        not LOGS.isdisjoint(words),
    )


def _by_words(words: list[str]) -> ToolClass:
    """Return the class by `status` as the last word, or by the verbs of the name."""
    first, several = words[0], len(words) > 1
    if words[-1] == "status" and first not in _NO_STATES:
        return "poll"
    if first == "poll" and several:
        return "poll"
    if not WAITS.isdisjoint(words) and first not in _NO_STATES | WRITE_VERBS:
        return "poll"
    intent = intent_of(words)
    if intent == "write":
        return "change"
    if intent == "message" and several:
        return "message"
    return "read" if intent == "read" and several and first in PURE_READS else "other"
