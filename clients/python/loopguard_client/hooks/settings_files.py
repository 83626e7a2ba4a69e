"""Changes the settings files of coding agents, with a backup, and only if nothing would be lost."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from loopguard_client import credentials
from loopguard_client.hooks import jsonc
from loopguard_client.hooks.hosts import Host
from loopguard_client.hooks.plugins import PluginHost


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
    beside : mapping
        The text of files that belong to a plugin; None: they are to be removed.
    """

    file: Path
    before: str | None
    after: str | None
    beside: Mapping[Path, str | None] = field(default_factory=dict)

    @property
    def is_needed(self) -> bool:
        """Whether the file needs the change."""
        return self.before != self.after or any(_text(file) != text for file, text in self.beside.items())

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
        _put(self.file, self.after, mode)
        for file, text in self.beside.items():
            _put(file, text)
        return backup


def _put(file: Path, text: str | None, mode: int = 0o600) -> None:
    if text is None:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    credentials.write_private(file, text, mode)


def installation(
    host: Host | PluginHost, url: str, *, fail_closed: bool = False, project: Path | None = None
) -> Change:
    """Return the change that installs LoopGuard's hooks for an address.

    Parameters
    ----------
    project
        A folder whose settings get the hooks instead of those of the account.

    Raises
    ------
    SettingsProblem
        The file is not JSON of the expected form, or has comments among its hooks.
    """
    file, before = _read(host, project)
    if isinstance(host, PluginHost):
        return Change(file, before, host.plugin(url, fail_closed=fail_closed), host.files_beside(project))
    document = _parsed(host, file, before)
    changed = host.with_hooks(document, url, fail_closed=fail_closed)
    return Change(file, before, before if changed == document else _changed(file, host, changed, before))


def removal(host: Host | PluginHost, project: Path | None = None) -> Change:
    """Return the change that removes LoopGuard's hooks and nothing else.

    If nobody has changed the file since the installation, it gets its content from before, byte for byte.

    Raises
    ------
    SettingsProblem
        The file is not JSON of the expected form, or has comments among its hooks.
    """
    file, before = _read(host, project)
    if before is None:
        return Change(file, None, None)
    kept = _kept(file, before)
    beside = dict.fromkeys(host.files_beside(project)) if isinstance(host, PluginHost) else {}
    if kept is not None:
        return Change(file, before, kept.before, beside if kept.before is None else {})
    if isinstance(host, PluginHost):
        return Change(file, before, None, beside) if host.is_ours(before) else Change(file, before, before)
    document = _parsed(host, file, before)
    changed = host.without_hooks(document)
    if changed == document:
        return Change(file, before, before)
    is_empty = host.is_own_file and not changed.keys() - {"version"}
    return Change(file, before, None if is_empty else _changed(file, host, changed, before))


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a file was before the installation; None: it did not exist."""

    before: str | None


def keep(change: Change) -> None:
    """Keep what a file was before the installation that is to be made, for the removal.

    Of several installations in a row, it is what the file was before the first.

    Raises
    ------
    OSError
        The folder of this account's settings cannot be written.
    """
    earlier = _kept(change.file, change.before) if change.before is not None else None
    record = _record(change.file)
    if earlier is None and change.before is not None and "/api/v1/hooks/" in change.before:
        record.unlink(missing_ok=True)  # hooks of an installation that is not known
        return
    record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = earlier.before if earlier is not None else change.before
    document = {"file": str(change.file), "after": _digest(change.after or ""), "before": before}
    credentials.write_private(record, json.dumps(document))


def _kept(file: Path, text: str) -> _Kept | None:
    """Return what a file was before the installation, if nobody has changed it since."""
    try:
        document = json.loads(_record(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_unchanged = isinstance(document, dict) and document.get("after") == _digest(text)
    return _Kept(document["before"]) if is_unchanged and "before" in document else None


def _record(file: Path) -> Path:
    return credentials.folder() / "installed" / f"{_digest(str(file))}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def parsed_settings(host: Host, project: Path | None = None) -> dict[str, Any]:
    """Return the settings of a host; empty if there is no file.

    Raises
    ------
    SettingsProblem
        The file is not plain JSON of the expected form.
    """
    return _parsed(host, *_read(host, project))


def _read(host: Host | PluginHost, project: Path | None = None) -> tuple[Path, str | None]:
    file = host.settings_file(project)
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


def _parsed(host: Host, file: Path, text: str | None) -> dict[str, Any]:
    if text is None or not text.removeprefix(jsonc.BYTE_ORDER_MARK).strip():
        return {}
    try:
        document: Any = jsonc.parsed(text)
    except ValueError as error:
        raise SettingsProblem(f"{file} is not JSON ({error}). Nothing was changed.") from None
    if isinstance(document, dict):
        hooks = document.get("hooks", [] if host.trigger_field else {})
        if host.trigger_field:
            is_known = isinstance(hooks, list) and all(isinstance(one, dict) for one in hooks)
        else:
            is_known = isinstance(hooks, dict) and all(
                isinstance(one, (list, bool)) for one in hooks.values()
            )
        if is_known:
            return document
    raise SettingsProblem(f"{file} does not have a known form of hooks. Nothing was changed.")


def _changed(file: Path, host: Host, document: Mapping[str, object], before: str | None) -> str:
    """Return the text of a file with other hooks; everything else in it stays as it is written."""
    if before is None or not before.removeprefix(jsonc.BYTE_ORDER_MARK).strip():
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if jsonc.has_comment(before, "hooks"):
        hooks = json.dumps(document.get("hooks", {}), indent=2, ensure_ascii=False)
        raise SettingsProblem(
            f"{file} has comments among its hooks, which would be lost. Nothing was changed. "
            f'Set `"hooks"` to this by hand:\n{hooks}'
        )
    text = jsonc.replaced(before, "hooks", document.get("hooks"))
    if host.version is not None and "version" not in jsonc.parsed(before):
        text = jsonc.replaced(text, "version", host.version)
    return text
