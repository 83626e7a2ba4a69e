"""OpenCode: a plugin file instead of hooks in a settings file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from loopguard_client import credentials
from loopguard_client.hooks.hosts import HOSTS, Host

MARK = "/api/v1/hooks/opencode"


@dataclass(frozen=True, slots=True)
class PluginHost:
    """A coding agent that loads a file of JavaScript."""

    name: str = "opencode"
    title: str = "OpenCode"
    program: str = "opencode"
    next_step: str = ""

    def settings_file(self) -> Path:
        """Return the plugin file of this account."""
        given = Path(os.environ.get("OPENCODE_CONFIG_DIR", ""))
        base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
        folder = (
            given
            if given.is_absolute()
            else (base if base.is_absolute() else Path.home() / ".config") / "opencode"
        )
        return folder / "plugins" / "loopguard.js"

    def address(self, url: str) -> str:
        """Return the address of its hooks."""
        return f"{url.rstrip('/')}{MARK}"

    def is_ours(self, text: str) -> bool:
        """Return whether a plugin file is LoopGuard's."""
        return MARK in text

    def plugin(self, url: str, *, fail_closed: bool = False) -> str:
        """Return the plugin file."""
        text = files("loopguard_client.hooks").joinpath("opencode.js").read_text(encoding="utf-8")
        values = {
            '"@ADDRESS@"': json.dumps(self.address(url)),
            '"@KEY_FILE@"': json.dumps(str(credentials.curl_file())),
            '"@FAIL_CLOSED@"': json.dumps(str(fail_closed).lower()),
        }
        for place, value in values.items():
            text = text.replace(place, value)
        return text


ALL_HOSTS: dict[str, Host | PluginHost] = {**HOSTS, "opencode": PluginHost()}
