"""OpenCode and Kilo, which takes the same plugins: a file of JavaScript instead of hooks in a settings file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from loopguard_client import credentials
from loopguard_client.hooks.hosts import HOSTS, Host


@dataclass(frozen=True, slots=True)
class PluginHost:
    """A coding agent that loads a file of JavaScript.

    Attributes
    ----------
    name, title : str
        Its name, which its program and its folder have, too, and its name for people.
    variable : str
        Environment variable of its folder.
    """

    name: str
    title: str
    variable: str
    next_step: str = ""

    def settings_file(self, project: Path | None = None) -> Path:
        """Return the plugin file of this account, or of a project."""
        if project is not None:
            return project / f".{self.name}" / "plugins" / "loopguard.js"
        given = Path(os.environ.get(self.variable, ""))
        base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
        folder = (
            given
            if given.is_absolute()
            else (base if base.is_absolute() else Path.home() / ".config") / self.name
        )
        return folder / "plugins" / "loopguard.js"

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
        text = files("loopguard_client.hooks").joinpath("opencode.js").read_text(encoding="utf-8")
        values = {
            '"@ADDRESS@"': json.dumps(self.address(url)),
            '"@KEY_FILE@"': json.dumps(str(credentials.curl_file())),
            '"@LATE_FILE@"': json.dumps(str(credentials.late_file())),
            '"@FAIL_CLOSED@"': json.dumps(str(fail_closed).lower()),
        }
        for place, value in values.items():
            text = text.replace(place, value)
        return text


PLUGIN_HOSTS: dict[str, PluginHost] = {
    host.name: host
    for host in (
        PluginHost("opencode", "OpenCode", "OPENCODE_CONFIG_DIR"),
        PluginHost("kilo", "Kilo", "KILO_CONFIG_DIR"),
    )
}
ALL_HOSTS: dict[str, Host | PluginHost] = {**HOSTS, **PLUGIN_HOSTS}
