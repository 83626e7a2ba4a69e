"""Coding agents: where each keeps its hooks, and in which form.

Does not belong here: files (`settings_files`), and what the server makes of a hook.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from loopguard_client import credentials

HOST_SECONDS: Final = 10
"""How long a host waits for a hook; `hook.sh` takes at most 2."""
WAIT_SECONDS: Final = 45
"""How long a hook waits for the decision about a held call; `hook.sh` has the same number."""
CLOSED: Final = " closed"
"""The word in a command that fails closed."""
_CLAUDE_CODE_HOOKS: Final = (
    "PostToolUse",
    "PostToolUseFailure",
    "UserPromptSubmit",
    "Stop",
    "PreCompact",
    "SubagentStop",
    "SessionEnd",
)
"""Besides the one before a tool; Qwen Code has taken them over."""


def hook_script() -> str:
    """Return the file that the hooks run."""
    return files("loopguard_client.hooks").joinpath("hook.sh").read_text(encoding="utf-8")


def shell_word(text: str) -> str:
    """Return one word of a command; on Windows as PowerShell, `cmd` and Git's shell all read it."""
    return f'"{text.replace(chr(92), "/")}"' if os.name == "nt" else shlex.quote(text)


@dataclass(frozen=True, slots=True)
class Host:
    """A coding agent.

    Attributes
    ----------
    name, title, program : str
        Its name in commands and for people, and its program.
    home : tuple of str
        Environment variable of its folder, and the folder below the home folder.
    file : str
        The settings file in its folder.
    project_file : str
        The settings file in the folder of a project; where there is one, that of this account alone.
    shared_files : tuple of str
        Further settings files in the folder of a project.
    before : str
        The hook that may block a call.
    other_hooks : tuple of str
        Further hooks.
    matches : bool
        Whether hooks of tools need a pattern of tools.
    is_own_file : bool
        Whether the file has nothing but our hooks.
    waits : bool
        Whether its hook waits for an operator where a call is held; the others ask their own user.
    next_step : str
        What a person has to do after the installation.
    """

    name: str
    title: str
    program: str
    home: tuple[str, str]
    file: str
    project_file: str
    before: str
    other_hooks: tuple[str, ...]
    matches: bool = True
    is_own_file: bool = False
    waits: bool = False
    shared_files: tuple[str, ...] = ()
    next_step: str = ""

    def settings_file(self, project: Path | None = None) -> Path:
        """Return the settings file of this account, or of a project."""
        if project is not None:
            return project / self.project_file
        variable, folder = self.home
        base = Path(os.environ.get(variable, "")) if variable else Path()
        return (base if base.is_absolute() else Path.home() / folder) / self.file

    def command(self, url: str, hook: str, *, fail_closed: bool = False) -> str:
        """Return the shell command of a hook.

        It prints the server's answer, which is in the host's format, and exits with 0 on any failure of its own; with
        `fail_closed` the hook before a tool exits with 2, which means *deny* to every host. Where the hook waits, it
        does so until a held call is decided, and denies the call if that fails.
        """
        is_before = hook == self.before
        is_closed = is_before and fail_closed
        chosen = (" end" if hook == "SessionEnd" else "") + (" wait" if is_before and self.waits else "")
        file = shell_word(str(credentials.hook_file()))
        run = f"sh {file} {shell_word(self.address(url))}{chosen}{CLOSED if is_closed else ''}"
        if os.name == "nt":  # a shell of which nobody knows the name
            return run
        # Some shells end with 2 if the file is missing.
        return f"{run} || exit 2" if is_closed else f"test ! -r {file} || {run}"

    def address(self, url: str) -> str:
        """Return the address of this host's hooks."""
        return f"{url.rstrip('/')}/api/v1/hooks/{self.name}"

    def is_ours(self, handler: Any) -> bool:
        """Return whether a handler in the settings is LoopGuard's."""
        if not isinstance(handler, Mapping):
            return False
        command = handler.get("command", handler.get("bash"))
        return isinstance(command, str) and f"/api/v1/hooks/{self.name}" in command

    def handlers(self, url: str, *, fail_closed: bool) -> dict[str, dict[str, Any]]:
        """Return the handler of each hook."""
        seconds = HOST_SECONDS + (WAIT_SECONDS if self.waits else 0)
        before = self.command(url, self.before, fail_closed=fail_closed)
        others = {hook: self._handler(self.command(url, hook)) for hook in self.other_hooks}
        return {self.before: self._handler(before, seconds), **others}

    def _handler(self, command: str, seconds: int = HOST_SECONDS) -> dict[str, Any]:
        if self.name == "copilot":
            return {"type": "command", "bash": command, "timeoutSec": seconds}
        if self.name == "gemini-cli":  # milliseconds
            return {
                "type": "command",
                "name": "loopguard",
                "command": command,
                "timeout": seconds * 1000,
            }
        return {"type": "command", "command": command, "timeout": seconds}

    def with_hooks(
        self, document: Mapping[str, Any], url: str, *, fail_closed: bool = False
    ) -> dict[str, Any]:
        """Return settings with LoopGuard's hooks added and all others unchanged."""
        changed = self.without_hooks(document)
        hooks = dict(changed.get("hooks") or {})
        for hook, handler in self.handlers(url, fail_closed=fail_closed).items():
            entry: dict[str, Any] = handler
            if not self.is_own_file:
                is_of_tools = self.matches and "Tool" in hook
                entry = {**({"matcher": "*"} if is_of_tools else {}), "hooks": [handler]}
            hooks[hook] = [*(hooks.get(hook) or []), entry]
        changed["hooks"] = hooks
        return {"version": 1, **changed} if self.is_own_file else changed

    def without_hooks(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings without LoopGuard's hooks. Entries that become empty are removed."""
        changed = dict(document)
        hooks = changed.get("hooks")
        if not isinstance(hooks, Mapping):
            return changed
        kept: dict[str, Any] = {}
        for hook, groups in hooks.items():
            left = (
                [one for group in groups if (one := self._without(group)) is not None]
                if isinstance(groups, list)
                else groups
            )
            if left or groups == []:
                kept[hook] = left
        if kept or not hooks:
            changed["hooks"] = kept
        else:
            del changed["hooks"]
        return changed

    def _without(self, group: Any) -> Any:
        if self.is_ours(group):
            return None
        if not isinstance(group, Mapping) or not isinstance(group.get("hooks"), list):
            return group
        left = [handler for handler in group["hooks"] if not self.is_ours(handler)]
        if len(left) == len(group["hooks"]):
            return group
        return {**group, "hooks": left} if left else None

    def installed_commands(self, document: Mapping[str, Any]) -> dict[str, str]:
        """Return the command of LoopGuard in each hook that has one."""
        found: dict[str, str] = {}
        hooks = document.get("hooks")
        for hook, groups in hooks.items() if isinstance(hooks, Mapping) else ():
            for group in groups if isinstance(groups, list) else ():
                handlers: Sequence[Any] = group.get("hooks", [group]) if isinstance(group, Mapping) else ()
                for handler in handlers if isinstance(handlers, list) else ():
                    if self.is_ours(handler):
                        found[hook] = str(handler.get("command", handler.get("bash")))
        return found

    def sample(self, session: str) -> dict[str, Any]:
        """Return the body of a hook before a tool, as the host sends it."""
        return {
            "session_id": session,
            "hook_event_name": self.before,
            "cwd": "/",
            "tool_name": "loopguard_check",
            "tool_input": {"check": session},
            "tool_use_id": f"check-{session}",
        }


HOSTS: Final[Mapping[str, Host]] = {
    host.name: host
    for host in (
        Host(
            name="claude-code",
            title="Claude Code",
            program="claude",
            home=("CLAUDE_CONFIG_DIR", ".claude"),
            file="settings.json",
            project_file=".claude/settings.local.json",
            shared_files=(".claude/settings.json",),
            before="PreToolUse",
            other_hooks=_CLAUDE_CODE_HOOKS,
        ),
        Host(
            name="qwen-code",
            title="Qwen Code",
            program="qwen",
            home=("", ".qwen"),
            file="settings.json",
            project_file=".qwen/settings.json",
            before="PreToolUse",
            other_hooks=_CLAUDE_CODE_HOOKS,
        ),
        Host(
            name="codex",
            title="Codex CLI",
            program="codex",
            home=("CODEX_HOME", ".codex"),
            file="hooks.json",
            project_file=".codex/hooks.json",
            before="PreToolUse",
            other_hooks=("PostToolUse", "UserPromptSubmit", "Stop"),
            waits=True,
            next_step=(
                "Codex silently skips hooks that are not trusted. Start `codex`, enter /hooks, and trust "
                "LoopGuard's hooks, again after every change. Then run `loopguard hooks check codex`."
            ),
        ),
        Host(
            name="gemini-cli",
            title="Gemini CLI",
            program="gemini",
            home=("", ".gemini"),
            file="settings.json",
            project_file=".gemini/settings.json",
            before="BeforeTool",
            other_hooks=("AfterTool", "BeforeAgent", "AfterAgent", "PreCompress", "SessionEnd"),
            waits=True,
        ),
        Host(
            name="copilot",
            title="Copilot CLI",
            program="copilot",
            home=("COPILOT_HOME", ".copilot"),
            file="hooks/loopguard.json",
            project_file=".github/hooks/loopguard.json",
            before="PreToolUse",
            other_hooks=(
                "PostToolUse",
                "PostToolUseFailure",
                "UserPromptSubmit",
                "SubagentStop",
                "SessionEnd",
            ),
            is_own_file=True,
        ),
    )
}
