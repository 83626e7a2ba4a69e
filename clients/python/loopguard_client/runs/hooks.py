"""Hooks of a coding agent for one run: set by its arguments or its environment, so that no settings file changes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loopguard_client.credentials import Credentials, curl_file, hook_file, write_private
from loopguard_client.hooks.codex import listed_hooks
from loopguard_client.hooks.hosts import Host, hook_script
from loopguard_client.hooks.plugins import ALL_HOSTS, PluginHost
from loopguard_client.hooks.settings_files import SettingsProblem, parsed_settings, removal


@dataclass(frozen=True, slots=True)
class HooksForRun:
    """What gives a program its hooks.

    Attributes
    ----------
    title : str
        Name of the host for people.
    arguments : sequence of str
        Arguments before those of the person.
    environment : mapping
        Variables.
    """

    title: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class NoHooks(Exception):
    """The program gets no hooks for this run. The text says why, and begins with the host's name."""


_ARGUMENTS: Final = {
    "claude-code": "--settings", "droid": "--settings", "copilot": "--plugin-dir", "pi": "--extension",
}  # fmt: skip
"""The argument with further settings (JSON or a file), the folder of a plugin, or the file of an extension."""
_FOLDERS: Final = {"opencode": "OPENCODE_CONFIG_DIR", "kilo": "KILO_CONFIG_DIR"}
"""The variable with a further folder of settings."""
_SYSTEM_FILES: Final = {"qwen-code": ("QWEN_CODE_SYSTEM_SETTINGS_PATH", "qwen-code", "QwenCode")}
"""The variable with the settings file of the machine, and that file's folder on Linux and on macOS.

Gemini CLI has such a variable, too, but reads only a file of root.
"""


def host_of(command: Sequence[str]) -> Host | PluginHost | None:
    """Return the coding agent that a command starts, if it is one with hooks."""
    program = Path(command[0]).stem if os.name == "nt" else Path(command[0]).name
    return next((host for host in ALL_HOSTS.values() if host.program == program), None)


def hooks_for_run(
    host: Host | PluginHost, command: Sequence[str], found: Credentials, tags: str, *, fail_closed: bool
) -> HooksForRun:
    """Write what the hooks of one run need to the folder of `credentials`, and return how the host gets them.

    Raises
    ------
    NoHooks
        The host cannot be given hooks for one run, or has them already.
    """
    if _are_installed(host):
        raise NoHooks(f"{host.title}: its hooks are installed already, and do not tag this run")
    write_private(hook_file(), hook_script())
    found.store()
    with curl_file().open("a", encoding="utf-8") as file:
        file.write(f"header = {json.dumps(f'LoopGuard-Tags: {tags}')}\n")
    if isinstance(host, PluginHost):
        return _of_plugin(host, command, host.plugin(found.url, fail_closed=fail_closed))
    settings = host.with_hooks({}, found.url, fail_closed=fail_closed)
    if host.name in _ARGUMENTS:
        return HooksForRun(host.title, [_ARGUMENTS[host.name], _argument(host, command, settings)])
    if host.name == "codex":
        return HooksForRun(host.title, _of_codex(host, command, settings["hooks"]))
    if host.name in _SYSTEM_FILES:
        variable, linux, macos = _SYSTEM_FILES[host.name]
        usual = f"/Library/Application Support/{macos}" if sys.platform == "darwin" else f"/etc/{linux}"
        settings = _settings(Path(os.environ.get(variable) or Path(usual, "settings.json")), host)
        file_of_run = hook_file().with_name("settings.json")
        write_private(file_of_run, json.dumps(host.with_hooks(settings, found.url, fail_closed=fail_closed)))
        return HooksForRun(host.title, environment={variable: str(file_of_run)})
    raise NoHooks(
        f"{host.title}: it takes no hooks for one run; install them with `loopguard hooks install {host.name}`"
    )


def _of_plugin(host: PluginHost, command: Sequence[str], text: str) -> HooksForRun:
    folder = hook_file().parent
    if host.name in _ARGUMENTS:
        write_private(folder / "loopguard.js", text)
        return HooksForRun(host.title, [_ARGUMENTS[host.name], str(folder / "loopguard.js")])
    variable = _FOLDERS.get(host.name, "")
    if not variable or os.environ.get(variable):
        raise NoHooks(
            f"{host.title}: "
            + (f"{variable} is set" if variable else "it takes no hooks for one run")
            + f"; install them with `loopguard hooks install {host.name}`"
        )
    file = folder / "config" / host.file
    file.parent.mkdir(mode=0o700, parents=True)
    write_private(file, text)
    return HooksForRun(host.title, environment={variable: str(folder / "config")})


def _are_installed(host: Host | PluginHost) -> bool:
    try:
        if isinstance(host, PluginHost):
            return removal(host).is_needed
        return bool(host.installed_commands(parsed_settings(host)))
    except SettingsProblem:
        return False


def _argument(host: Host, command: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Return the argument with the hooks: as JSON, as a file, or as the folder of a plugin."""
    name = _ARGUMENTS[host.name]
    if name == "--plugin-dir":  # may be given more than once
        write_private(hook_file().with_name("plugin.json"), '{"name": "loopguard", "hooks": "hooks.json"}')
        write_private(hook_file().with_name("hooks.json"), json.dumps(settings))
        return str(hook_file().parent)
    if any(word.split("=")[0] == name for word in command):
        raise NoHooks(f"{host.title}: the command has its own {name}")
    if host.name == "claude-code":
        return json.dumps(settings)
    write_private(hook_file().with_name("settings.json"), json.dumps(settings))
    return str(hook_file().with_name("settings.json"))


def _of_codex(host: Host, command: Sequence[str], hooks: Mapping[str, Any]) -> Sequence[str]:
    """Return settings with the hooks, and with the hashes under which Codex runs them; see `listed_hooks`.

    Whoever starts a program with `loopguard run` wants its hooks. All others stay as trusted as they are.
    """
    arguments = [word for hook, groups in hooks.items() for word in ("-c", f"hooks.{hook}={_toml(groups)}")]
    program = shutil.which(command[0])
    listed = listed_hooks(program, arguments) if program is not None else None
    trusted = {
        one["key"]: {"trusted_hash": one["currentHash"]}
        for one in listed or ()
        if one.get("source") == "sessionFlags" and host.is_ours(one)
    }
    if len(trusted) < len(hooks):
        raise NoHooks(f"{host.title}: `{host.program} app-server` does not list the hooks of one run")
    return [*arguments, "-c", f"hooks.state={_toml(trusted)}"]


def _toml(value: Any) -> str:
    """Return a value in TOML, in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(one)}" for name, one in value.items()) + "}"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def _settings(file: Path, host: Host) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise NoHooks(f"{host.title}: {file} cannot be read ({type(error).__name__})") from None
    if not isinstance(document, dict):
        raise NoHooks(f"{host.title}: {file} does not have the form of settings")
    return document
