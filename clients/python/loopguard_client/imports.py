"""Past runs of coding agents: finds their session files in the home folder, and uploads them to the server."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlencode

from loopguard_client.credentials import Credentials
from loopguard_client.transport import Transport

UPLOAD_SECONDS: Final = 3_600.0
"""Of one upload; the server ends those that are too slow by itself."""
_TOO_MANY: Final = "too_many_imports"
"""The server takes the next import when one of those before it has ended."""
_LOOK_SECONDS: Final = 2.0


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
    SessionFolder("pi", "PI_CODING_AGENT_DIR", ".pi/agent", "sessions/**/*.jsonl"),
    SessionFolder("qwen-code", "", ".qwen", "projects/*/chats/*.jsonl"),
    SessionFolder("cline", "", ".cline", "data/sessions/*/*.messages.json"),
    SessionFolder("opencode", "XDG_DATA_HOME", ".local/share", "opencode/opencode.db"),
    SessionFolder("kilo", "XDG_DATA_HOME", ".local/share", "kilo/kilo.db"),
)
_MESSAGES: Final = (
    "SELECT m.id, m.session_id, s.parent_id, s.directory, m.data FROM message m"
    " JOIN session s ON s.id = m.session_id ORDER BY m.session_id, m.id"
)
_PARTS: Final = "SELECT data FROM part WHERE message_id = ? ORDER BY id"


def size_of(files: Sequence[Path]) -> int:
    """Return the size of files in bytes."""
    return sum(file.stat().st_size for file in files)


def upload(found: Credentials, kind: str, files: Sequence[Path], root: Path) -> dict[str, Any]:
    """Upload files as one archive, and return the import as the API describes it.

    Waits while the server has too many others to read.

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
        path = f"/imports?{urlencode({'kind': kind, 'name': f'{kind}.zip'})}"
        transport = Transport(found.url, found.key, "loopguard-client")
        deadline = time.monotonic() + UPLOAD_SECONDS
        while True:
            archive.seek(0)
            response = transport.upload(path, archive, size, "application/zip", seconds=UPLOAD_SECONDS)
            if response.document.get("code") != _TOO_MANY or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
    if response.status != 202:
        raise ValueError(
            f"{found.url} did not accept the files: {response.document.get('detail') or response.status}"
        )
    return dict(response.document)


def _write(archive: BinaryIO, files: Sequence[Path], root: Path) -> None:
    # A file that was never written has a time that no archive can hold.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
        for file in files:
            name = file.relative_to(root)
            if file.suffix != ".db":
                packed.write(file, name)
                continue
            with packed.open(str(name.with_suffix(".jsonl")), "w", force_zip64=True) as member:
                for line in _messages_of(file):
                    member.write(line)


def _messages_of(database: Path) -> Iterator[bytes]:
    """Yield the messages of a database of OpenCode as lines; the credentials in it stay where they are."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)) as connection:
            for message, session, parent, folder, data in connection.execute(_MESSAGES):
                document = {"message": message, "session": session, "parent": parent, "directory": folder}
                parts = [_value(part) for (part,) in connection.execute(_PARTS, [message])]
                document |= {"data": _value(data), "parts": [part for part in parts if part]}
                yield json.dumps(document).encode() + b"\n"
    except sqlite3.Error as error:
        raise ValueError(f"{database} cannot be read: {error}.") from None


def _value(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
