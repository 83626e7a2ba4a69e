"""Coding agents with hooks in a settings file: where each keeps it, and in which form.

The facts are data, `hosts.json`, which installers in other languages read as well. It has `seconds`, how long a host
waits for a hook; `wait_seconds`, how much longer where a hook waits for an operator; and `hosts`, by their names in
commands. Each has

- `title` and `program`: its name for people, and its program;
- `form`: `settings` (hooks in a JSON file) or `plugin` (a file of JavaScript, see `plugins`);
- `home`: the environment variable of its folder, and the folder below the home folder; one below `.config` moves with
  `XDG_CONFIG_HOME`;
- `file` and `project_file`: the file in that folder, and in the folder of a project;
- `script`: of a plugin, the file that follows `plugin.js` in it;
- of settings, fields of `Host`: `before`, `other_hooks`, `handler`, `nested`, `matcher`, `version`, `is_own_file`,
  `waits`, `shared_files`;
- `plugin_lists`: files whose `disabledPlugins` may switch our plugin off, by its name or file; `@HOME@` is the folder
  of the host, and a path that begins with neither that nor `~` is in the folder of a project;
- `next_step`: what a person has to do after the installation.

Does not belong here: files (`settings_files`), and what the server makes of a hook.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from loopguard_client import credentials

_DATA: Final = json.loads(files("loopguard_client.hooks").joinpath("hosts.json").read_text(encoding="utf-8"))
HOST_SECONDS: Final[int] = _DATA["seconds"]
"""How long a host waits for a hook; `hook.sh` takes at most 2."""
WAIT_SECONDS: Final[int] = _DATA["wait_seconds"]
"""How long a hook waits for the decision about a held call; `hook.sh` has the same number."""
CLOSED: Final = " closed"
"""The word in a command that fails closed."""
_CONFIG: Final = ".config/"


def hook_script() -> str:
    """Return the file that the hooks run."""
    return files("loopguard_client.hooks").joinpath("hook.sh").read_text(encoding="utf-8")


def shell_word(text: str) -> str:
    """Return one word of a command; on Windows as PowerShell, `cmd` and Git's shell all read it."""
    return f'"{text.replace(chr(92), "/")}"' if os.name == "nt" else shlex.quote(text)


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of a coding agent.

    Attributes
    ----------
    variable : str
        Environment variable with the folder; empty if there is none.
    folder : str
        The folder below the home folder; one that starts with `.config/` moves with `XDG_CONFIG_HOME`.
    """

    variable: str
    folder: str

    def folder_of(self, project: Path | None = None) -> Path:
        """Return the folder of this account, or that of a project."""
        if project is not None:
            return project
        given = Path(os.environ.get(self.variable, "")) if self.variable else Path()
        if given.is_absolute():
            return given
        moved = Path(os.environ.get("XDG_CONFIG_HOME", ""))
        is_moved = moved.is_absolute() and self.folder.startswith(_CONFIG)
        return moved / self.folder.removeprefix(_CONFIG) if is_moved else Path.home() / self.folder


def hosts_of(form: str) -> Iterator[dict[str, Any]]:
    """Return the fields of each host of a form, in the order of the data."""
    for name, fields in _DATA["hosts"].items():
        if fields["form"] == form:
            own = {key: value for key, value in fields.items() if key not in ("form", "home")}
            yield {"name": name, "home": Home(**fields["home"]), **own}


@dataclass(frozen=True, slots=True)
class Host:
    """A coding agent.

    Attributes
    ----------
    name, title, program : str
        Its name in commands and for people, and its program.
    home : Home
        Its folder.
    file : str
        The settings file in its folder.
    project_file : str
        The settings file in the folder of a project; where there is one, that of this account alone.
    before : str
        The hook that may block a call.
    other_hooks : sequence of str
        Further hooks.
    handler : mapping
        What a hook is set to; `@COMMAND@`, `@SECONDS@` and `@MILLISECONDS@` stand for its command and its time.
    nested : bool
        Whether handlers are in groups, `{"hooks": [handler]}`.
    matcher : str
        The pattern of tools in groups of hooks of tools; empty for none.
    version : int or None
        The version that the file has to name.
    is_own_file : bool
        Whether the file has nothing but our hooks.
    waits : bool
        Whether its hook waits for an operator where a call is held; the others ask their own user.
    shared_files : sequence of str
        Further settings files in the folder of a project.
    plugin_lists : sequence of str
        Files that may switch our plugin off; see above.
    next_step : str
        What a person has to do after the installation.
    """

    name: str
    title: str
    program: str
    home: Home
    file: str
    project_file: str
    before: str
    other_hooks: Sequence[str]
    handler: Mapping[str, str]
    nested: bool = False
    matcher: str = ""
    version: int | None = None
    is_own_file: bool = False
    waits: bool = False
    shared_files: Sequence[str] = ()
    plugin_lists: Sequence[str] = ()
    next_step: str = ""

    def settings_file(self, project: Path | None = None) -> Path:
        """Return the settings file of this account, or of a project."""
        return self.home.folder_of(project) / (self.file if project is None else self.project_file)

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
        command = handler.get(self._command_field)
        return isinstance(command, str) and f"/api/v1/hooks/{self.name}" in command

    @property
    def _command_field(self) -> str:
        return next(field for field, value in self.handler.items() if value == "@COMMAND@")

    def handlers(self, url: str, *, fail_closed: bool) -> dict[str, dict[str, Any]]:
        """Return the handler of each hook."""
        seconds = HOST_SECONDS + (WAIT_SECONDS if self.waits else 0)
        before = self.command(url, self.before, fail_closed=fail_closed)
        others = {hook: self._handler(self.command(url, hook)) for hook in self.other_hooks}
        return {self.before: self._handler(before, seconds), **others}

    def _handler(self, command: str, seconds: int = HOST_SECONDS) -> dict[str, Any]:
        values = {"@COMMAND@": command, "@SECONDS@": seconds, "@MILLISECONDS@": seconds * 1000}
        return {field: values.get(value, value) for field, value in self.handler.items()}

    def with_hooks(
        self, document: Mapping[str, Any], url: str, *, fail_closed: bool = False
    ) -> dict[str, Any]:
        """Return settings with LoopGuard's hooks added and all others unchanged."""
        changed = self.without_hooks(document)
        hooks = dict(changed.get("hooks") or {})
        for hook, handler in self.handlers(url, fail_closed=fail_closed).items():
            entry: dict[str, Any] = handler
            if self.nested:
                pattern = {"matcher": self.matcher} if self.matcher and "Tool" in hook else {}
                entry = {**pattern, "hooks": [handler]}
            hooks[hook] = [*(hooks.get(hook) or []), entry]
        changed["hooks"] = hooks
        return changed if self.version is None else {"version": self.version, **changed}

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
                        found[hook] = str(handler[self._command_field])
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


HOSTS: Final[Mapping[str, Host]] = {fields["name"]: Host(**fields) for fields in hosts_of("settings")}
