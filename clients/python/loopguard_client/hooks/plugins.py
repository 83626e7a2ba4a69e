"""Coding agents that load a file of JavaScript instead of hooks in a settings file, such as OpenCode and pi."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from loopguard_client import credentials
from loopguard_client.hooks.hosts import HOSTS, Home, Host, hosts_of


@dataclass(frozen=True, slots=True)
class PluginHost:
    """A coding agent that loads a file of JavaScript.

    Attributes
    ----------
    name, title, program : str
        Its name in commands and for people, and its program.
    home : Home
        Its folder.
    file, project_file : str
        The file in its folder, and in the folder of a project.
    script : str
        The part of the file that speaks its language.
    beside : mapping
        Documents that its folder needs beside the file, by their names.
    plugin_lists : sequence of str
        Files that may switch the plugin off; see `hosts`.
    next_step : str
        What a person has to do after the installation.
    """

    name: str
    title: str
    program: str
    home: Home
    file: str
    project_file: str
    script: str
    beside: Mapping[str, Any] = field(default_factory=dict)
    plugin_lists: Sequence[str] = ()
    next_step: str = ""

    def settings_file(self, project: Path | None = None) -> Path:
        """Return the plugin file of this account, or of a project."""
        return self.home.folder_of(project) / (self.file if project is None else self.project_file)

    def files_beside(self, project: Path | None = None) -> dict[Path, str]:
        """Return the text of each file that is needed beside the plugin."""
        folder = self.settings_file(project).parent
        return {
            folder / name: json.dumps(document, indent=2) + "\n" for name, document in self.beside.items()
        }

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


PLUGIN_HOSTS: dict[str, PluginHost] = {fields["name"]: PluginHost(**fields) for fields in hosts_of("plugin")}
ALL_HOSTS: dict[str, Host | PluginHost] = {**HOSTS, **PLUGIN_HOSTS}
