"""Coding agents that load a file of JavaScript instead of hooks in a settings file: OpenCode, Kilo and pi."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from loopguard_client import credentials
from loopguard_client.hooks.hosts import HOSTS, Host

_CONFIG: Final = ".config/"


@dataclass(frozen=True, slots=True)
class PluginHost:
    """A coding agent that loads a file of JavaScript.

    Attributes
    ----------
    name, title : str
        Its name, which its program has, too, and its name for people.
    variable : str
        Environment variable of its folder.
    script : str
        The part of the file that speaks its language.
    home : str
        Its folder below the home folder; one that starts with `.config/` moves with `XDG_CONFIG_HOME`.
    file, project_file : str
        The file in its folder, and in the folder of a project.
    """

    name: str
    title: str
    variable: str
    script: str
    home: str
    file: str
    project_file: str
    next_step: str = ""

    def settings_file(self, project: Path | None = None) -> Path:
        """Return the plugin file of this account, or of a project."""
        if project is not None:
            return project / self.project_file
        given, base = Path(os.environ.get(self.variable, "")), Path(os.environ.get("XDG_CONFIG_HOME", ""))
        if given.is_absolute():
            return given / self.file
        is_moved = base.is_absolute() and self.home.startswith(_CONFIG)
        return (base / self.home.removeprefix(_CONFIG) if is_moved else Path.home() / self.home) / self.file

    def address(self, url: str) -> str:
        """Return the address of its hooks."""
        return f"{url.rstrip('/')}{self._path}"

    def is_ours(self, text: str) -> bool:
        """Return whether a plugin file is LoopGuard's."""
        return f'{self._path}"' in text

    @property
    def _path(self) -> str:
        return f"/api/v1/hooks/{self.name}"

    def plugin(self, url: str, *, fail_closed: bool = False) -> str:
        """Return the plugin file."""
        folder = files("loopguard_client.hooks")
        text = "\n".join(
            folder.joinpath(name).read_text(encoding="utf-8").strip() + "\n"
            for name in ("plugin.js", self.script)
        )
        values = {
            '"@ADDRESS@"': json.dumps(self.address(url)),
            '"@KEY_FILE@"': json.dumps(str(credentials.curl_file())),
            '"@LATE_FILE@"': json.dumps(str(credentials.late_file())),
            '"@FAIL_CLOSED@"': json.dumps(str(fail_closed).lower()),
        }
        for place, value in values.items():
            text = text.replace(place, value)
        return text


def _like_opencode(name: str, title: str) -> PluginHost:
    file = "plugins/loopguard.js"
    return PluginHost(
        name, title, f"{name.upper()}_CONFIG_DIR", "opencode.js", f"{_CONFIG}{name}", file, f".{name}/{file}"
    )


PLUGIN_HOSTS: dict[str, PluginHost] = {
    host.name: host
    for host in (
        _like_opencode("opencode", "OpenCode"),
        _like_opencode("kilo", "Kilo"),
        PluginHost(
            "pi", "pi", "PI_CODING_AGENT_DIR", "pi.js", ".pi/agent", "extensions/loopguard.js",
            ".pi/extensions/loopguard.js",
        ),
    )
}  # fmt: skip
ALL_HOSTS: dict[str, Host | PluginHost] = {**HOSTS, **PLUGIN_HOSTS}
