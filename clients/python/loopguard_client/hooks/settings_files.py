"""Changes the settings files of coding agents, with a backup, and only if nothing would be lost."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from loopguard_client import credentials
from loopguard_client.hooks.hosts import Host
from loopguard_client.hooks.opencode import PluginHost


class SettingsProblem(Exception):
    """The settings cannot be changed safely. The text says why, and that nothing was changed."""


@dataclass(frozen=True, slots=True)
class Change:
    """A pending change to one file.

    Attributes
    ----------
    file : Path
        The file; behind links, where there are any.
    before, after : str or None
        Its text; None: it does not exist.
    """

    file: Path
    before: str | None
    after: str | None

    @property
    def is_needed(self) -> bool:
        """Whether the file needs the change."""
        return self.before != self.after

    def difference(self) -> str:
        """Return the change as a unified diff."""
        return "\n".join(
            difflib.unified_diff(
                (self.before or "").splitlines(),
                (self.after or "").splitlines(),
                str(self.file),
                str(self.file),
                lineterm="",
            )
        )

    def make(self) -> Path | None:
        """Write or remove the file, and return the backup of its previous content.

        Raises
        ------
        SettingsProblem
            Another program has changed the file in the meantime.
        OSError
            It cannot be written.
        """
        if _text(self.file) != self.before:
            raise SettingsProblem(
                f"{self.file} was changed by another program in the meantime. Nothing was changed; try again."
            )
        backup = None
        mode = self.file.stat().st_mode & 0o777 if self.before is not None else 0o600
        if self.before is not None:
            backup = self.file.with_name(f"{self.file.name}.before-loopguard-{datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005
            credentials.write_private(backup, self.before, mode)
        if self.after is None:
            self.file.unlink(missing_ok=True)
        else:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            credentials.write_private(self.file, self.after, mode)
        return backup


def installation(host: Host | PluginHost, url: str, *, fail_closed: bool = False) -> Change:
    """Return the change that installs LoopGuard's hooks for an address.

    Raises
    ------
    SettingsProblem
        The file is not plain JSON of the expected form.
    """
    file, before = _read(host)
    if isinstance(host, PluginHost):
        return Change(file, before, host.plugin(url, fail_closed=fail_closed))
    document = _parsed(file, before)
    changed = host.with_hooks(document, url, fail_closed=fail_closed)
    return Change(file, before, before if changed == document else _dumped(changed, before))


def removal(host: Host | PluginHost) -> Change:
    """Return the change that removes LoopGuard's hooks and nothing else.

    Raises
    ------
    SettingsProblem
        The file is not plain JSON of the expected form.
    """
    file, before = _read(host)
    if before is None:
        return Change(file, None, None)
    if isinstance(host, PluginHost):
        return Change(file, before, None if host.is_ours(before) else before)
    document = _parsed(file, before)
    changed = host.without_hooks(document)
    if changed == document:
        return Change(file, before, before)
    is_empty = host.is_own_file and not changed.keys() - {"version"}
    return Change(file, before, None if is_empty else _dumped(changed, before))


def parsed_settings(host: Host) -> dict[str, Any]:
    """Return the settings of a host; empty if there is no file.

    Raises
    ------
    SettingsProblem
        The file is not plain JSON of the expected form.
    """
    return _parsed(*_read(host))


def _read(host: Host | PluginHost) -> tuple[Path, str | None]:
    file = host.settings_file()
    if file.is_symlink():
        file = file.resolve()
    try:
        return file, _text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsProblem(f"{file} cannot be read: {error}. Nothing was changed.") from None


def _text(file: Path) -> str | None:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def _parsed(file: Path, text: str | None) -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    try:
        document: Any = json.loads(text, object_pairs_hook=_unique)
    except ValueError as error:
        raise SettingsProblem(f"{file} is not plain JSON ({error}). Nothing was changed.") from None
    if isinstance(document, dict):
        hooks = document.get("hooks", {})
        if isinstance(hooks, dict) and all(isinstance(one, (list, bool)) for one in hooks.values()):
            return document
    raise SettingsProblem(f"{file} does not have a known form of hooks. Nothing was changed.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return document


def _dumped(document: dict[str, Any], before: str | None) -> str:
    """Return JSON with the indentation and the line ends that the file had."""
    found = re.search(r"^([ \t]+)\S", before or "", re.MULTILINE)
    text = json.dumps(document, indent=found[1] if found else 2, ensure_ascii=False) + "\n"
    return text.replace("\n", "\r\n") if before and "\r\n" in before else text
