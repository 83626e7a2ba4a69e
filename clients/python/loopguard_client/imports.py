"""Past runs of coding agents: finds their session files in the home folder, and uploads them to the server."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlencode

from loopguard_client.credentials import Credentials
from loopguard_client.transport import Transport

UPLOAD_SECONDS: Final = 3_600.0
"""Of one upload; the server ends those that are too slow by itself."""


@dataclass(frozen=True, slots=True)
class SessionFolder:
    """Where a coding agent keeps the files of its sessions.

    Attributes
    ----------
    kind
        Name of the form of the files, which is that of the agent.
    variable, home
        The folder of the agent: what the variable names, else this one in the home folder.
    pattern
        The session files below it.
    """

    kind: str
    variable: str
    home: str
    pattern: str

    @property
    def path(self) -> Path:
        """The folder of the agent."""
        named = os.environ.get(self.variable, "") if self.variable else ""
        return Path(named).expanduser() if named else Path.home() / self.home

    def files(self) -> list[Path]:
        """Return the session files, the oldest name first."""
        return sorted(file for file in self.path.glob(self.pattern) if file.is_file())


FOLDERS: Final = (
    SessionFolder("claude-code", "CLAUDE_CONFIG_DIR", ".claude", "projects/**/*.jsonl"),
    SessionFolder("codex", "CODEX_HOME", ".codex", "sessions/**/rollout-*.jsonl"),
    SessionFolder("gemini-cli", "", ".gemini", "tmp/*/chats/*.jsonl"),
    SessionFolder("copilot", "COPILOT_HOME", ".copilot", "session-state/*/events.jsonl"),
)


def size_of(files: Sequence[Path]) -> int:
    """Return the size of files in bytes."""
    return sum(file.stat().st_size for file in files)


def upload(found: Credentials, kind: str, files: Sequence[Path], root: Path) -> dict[str, Any]:
    """Upload files as one archive, and return the import as the API describes it.

    Raises
    ------
    ValueError
        If the server does not accept it.
    NoAnswer
        If it does not answer.
    """
    with tempfile.TemporaryFile() as archive:
        _write(archive, files, root)
        size = archive.tell()
        archive.seek(0)
        path = f"/imports?{urlencode({'kind': kind, 'name': f'{kind}.zip'})}"
        transport = Transport(found.url, found.key, "loopguard-client")
        response = transport.upload(path, archive, size, "application/zip", seconds=UPLOAD_SECONDS)
    if response.status != 202:
        raise ValueError(
            f"{found.url} did not accept the files: {response.document.get('detail') or response.status}"
        )
    return dict(response.document)


def _write(archive: BinaryIO, files: Sequence[Path], root: Path) -> None:
    # A file that was never written has a time that no archive can hold.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for file in files:
            packed.write(file, file.relative_to(root))
