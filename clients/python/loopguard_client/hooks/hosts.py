"""Coding agents with hooks in a settings file: where each keeps it, and in which form.

The facts are data, `hosts.json`, which installers in other languages read as well. It has `seconds`, how long a host
waits for a hook; `wait_seconds`, how much longer where a hook waits for an operator; and `hosts`, by their names in
commands. Each has

- `title` and `program`: its name for people, and its program;
- `form`: `settings` (hooks in a JSON file) or `plugin` (a file of JavaScript, see `plugins`);
- `home`: the environment variable of its folder, and the folder below the home folder; one below `.config` moves with
  `XDG_CONFIG_HOME`;
- `file` and `project_file`: the file in that folder, and in the folder of a project;
- `script`: of a plugin, the file that follows `plugin.js` in it; `beside`: what other files its folder needs, by name;
- of settings, fields of `Host`: `before`, `other_hooks`, `handler`, `nested`, `matcher`, `version`, `is_own_file`,
  `waits`, `by_exit_code`, `shared_files`;
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
    before : sequence of str
        The hooks that may block a call; several where each kind of tool has its own.
    other_hooks : sequence of str
        Further hooks.
    handler : mapping
        What a hook is set to; `@COMMAND@`, `@SECONDS@` and `@MILLISECONDS@` stand for its command and its time. With
        `@HOOK@`, the hook itself, the file has a list of handlers instead of one for each hook.
    nested : bool
        Whether handlers are in groups, `{"hooks": [handler]}`.
    matcher : str
        The pattern of tools in groups of hooks of tools; empty for none.
    version : int, str or None
        The version that the file has to name.
    is_own_file : bool
        Whether the file has nothing but our hooks.
    waits : bool
        Whether its hook waits for an operator where a call is held; the others ask their own user.
    by_exit_code : bool
        Whether it reads the exit code and stderr of a hook, and not its output.
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
    before: Sequence[str]
    other_hooks: Sequence[str]
    handler: Mapping[str, Any]
    nested: bool = False
    matcher: str = ""
    version: int | str | None = None
    is_own_file: bool = False
    waits: bool = False
    by_exit_code: bool = False
    shared_files: Sequence[str] = ()
    plugin_lists: Sequence[str] = ()
    next_step: str = ""

    def settings_file(self, project: Path | None = None) -> Path:
        """Return the settings file of this account, or of a project."""
        return self.home.folder_of(project) / (self.file if project is None else self.project_file)

    def command(self, url: str, hook: str, *, fail_closed: bool = False) -> str:
        """Return the shell command of a hook.

        It prints the server's answer, which is in the host's format, and exits with 0 on any failure of its own; with
        `fail_closed` the hook before a tool exits with 2, which means *deny* to every host. Where the host reads the
        exit code, a denial is 2, too, and a failure of which the person is told 1. Where the hook waits, it does so
        until a held call is decided, and denies the call if that fails.
        """
        is_before = hook in self.before
        is_closed = is_before and fail_closed
        chosen = (" end" if hook == "SessionEnd" else "") + (" wait" if is_before and self.waits else "")
        chosen += " exit" if self.by_exit_code else ""
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
        return f"/api/v1/hooks/{self.name}" in self._command_of(handler)

    def _command_of(self, handler: Any, template: Any = None) -> str:
        """Return the command of a handler; empty if it has none where ours have theirs."""
        if not isinstance(handler, Mapping):
            return ""
        for field, value in (template or self.handler).items():
            if value == "@COMMAND@":
                return command if isinstance(command := handler.get(field), str) else ""
            if isinstance(value, Mapping):
                return self._command_of(handler.get(field), value)
        return ""

    @property
    def trigger_field(self) -> str:
        """The field of a handler that names its hook; empty where handlers are below the name of their hook."""
        return next((field for field, value in self.handler.items() if value == "@HOOK@"), "")

    def _by_hook(self, hooks: Any) -> dict[str, Any]:
        """Return what the settings have for each hook."""
        if not isinstance(hooks, list):
            return dict(hooks) if isinstance(hooks, Mapping) else {}
        found: dict[str, Any] = {}
        for handler in hooks:
            found.setdefault(str(handler.get(self.trigger_field)), []).append(handler)
        return found

    def _as_written(self, hooks: Mapping[str, Any]) -> Any:
        return (
            [handler for handlers in hooks.values() for handler in handlers] if self.trigger_field else hooks
        )

    def handlers(self, url: str, *, fail_closed: bool) -> dict[str, dict[str, Any]]:
        """Return the handler of each hook."""
        seconds = HOST_SECONDS + (WAIT_SECONDS if self.waits else 0)
        return {
            hook: _filled(
                self.handler,
                hook,
                self.command(url, hook, fail_closed=fail_closed),
                seconds if hook in self.before else HOST_SECONDS,
            )
            for hook in (*self.before, *self.other_hooks)
        }

    def with_hooks(
        self, document: Mapping[str, Any], url: str, *, fail_closed: bool = False
    ) -> dict[str, Any]:
        """Return settings with LoopGuard's hooks added and all others unchanged."""
        changed = self.without_hooks(document)
        hooks = self._by_hook(changed.get("hooks"))
        for hook, handler in self.handlers(url, fail_closed=fail_closed).items():
            entry: dict[str, Any] = handler
            if self.nested:
                pattern = {"matcher": self.matcher} if self.matcher and "Tool" in hook else {}
                entry = {**pattern, "hooks": [handler]}
            hooks[hook] = [*(hooks.get(hook) or []), entry]
        changed["hooks"] = self._as_written(hooks)
        return changed if self.version is None else {"version": self.version, **changed}

    def without_hooks(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings without LoopGuard's hooks. Entries that become empty are removed."""
        changed = dict(document)
        if not isinstance(changed.get("hooks"), (Mapping, list)):
            return changed
        hooks = self._by_hook(changed["hooks"])
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
            changed["hooks"] = self._as_written(kept)
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
        for hook, groups in self._by_hook(document.get("hooks")).items():
            for group in groups if isinstance(groups, list) else ():
                handlers: Sequence[Any] = group.get("hooks", [group]) if isinstance(group, Mapping) else ()
                for handler in handlers if isinstance(handlers, list) else ():
                    if self.is_ours(handler):
                        found[hook] = self._command_of(handler)
        return found

    def sample(self, session: str) -> dict[str, Any]:
        """Return the body of a hook before a tool, as the host sends it."""
        return {
            "session_id": session,
            "hook_event_name": self.before[0],
            "cwd": "/",
            "tool_name": "loopguard_check",
            "tool_input": {"check": session},
            "tool_use_id": f"check-{session}",
        }


def _filled(template: Mapping[str, Any], hook: str, command: str, seconds: int) -> dict[str, Any]:
    """Return a handler with its values in their places."""
    values = {"@COMMAND@": command, "@SECONDS@": seconds, "@MILLISECONDS@": seconds * 1000}
    return {
        field: _filled(value, hook, command, seconds)
        if isinstance(value, Mapping)
        else values.get(value, value.replace("@HOOK@", hook))
        for field, value in template.items()
    }


HOSTS: Final[Mapping[str, Host]] = {fields["name"]: Host(**fields) for fields in hosts_of("settings")}
