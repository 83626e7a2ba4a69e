"""Address and key of the server: given, from the environment, or from a file that only its owner may read.

The key is stored as a configuration file of curl, because the hooks of coding agents are a line of curl: the key then
is neither in an argument, which other accounts can see, nor in a variable, which hosts remove.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = ("LOOPGUARD_URL", "LOOPGUARD_KEY")
JSON_LINE = 'header = "Content-Type: application/json"'
_KEY_LINE = re.compile(r'^header = "Authorization: Bearer (lg_[0-9a-zA-Z_-]+)"$', re.MULTILINE)
_folder: ContextVar[Path | None] = ContextVar("loopguard_folder", default=None)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Address and API key of a server."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"Credentials(url={self.url!r})"

    @classmethod
    def find(cls, url: str = "", key: str = "") -> Credentials:
        """Return the given values, completed from the environment and from what ``loopguard login`` stored.

        Raises
        ------
        ValueError
            Something is missing; the text says what to do.
        """
        stored = cls.stored()
        url = url or os.environ.get(ENVIRONMENT[0], "") or (stored.url if stored else "")
        key = key or os.environ.get(ENVIRONMENT[1], "") or (stored.key if stored else "")
        missing = " and ".join(
            word for word, value in (("the address of LoopGuard", url), ("an API key", key)) if not value
        )
        if missing:
            raise ValueError(
                f"Missing {missing}. Pass `url` and `key`, set "
                f"{' and '.join(ENVIRONMENT)}, or run `loopguard login URL`."
            )
        return cls(url, key)

    @classmethod
    def stored(cls) -> Credentials | None:
        """Return the values that ``loopguard login`` stored, if complete."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            url = json.loads((folder() / "client.json").read_text(encoding="utf-8"))["url"]
            key = stored_key()
            if key and isinstance(url, str):
                return cls(url, key)
        return None

    def store(self) -> Path:
        """Write both files, readable by this account only; return the one with the key.

        Headers that somebody has added to it, such as tags, stay.

        Raises
        ------
        OSError
            The folder cannot be written.
        """
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(folder() / "client.json", json.dumps({"url": self.url}) + "\n")
        key_line = f'header = "Authorization: Bearer {self.key}"'
        text, changed = "", 0
        with contextlib.suppress(OSError, ValueError):
            text, changed = _KEY_LINE.subn(lambda _: key_line, curl_file().read_text(encoding="utf-8"))
        lines = ("# For curl -K. Keep it private.", key_line, JSON_LINE, "")
        write_private(curl_file(), text if changed else "\n".join(lines))
        return curl_file()


def folder() -> Path:
    """Return the folder of this account's settings, or the one of the surrounding `in_folder`."""
    return _folder.get() or Path.home() / ".loopguard"


@contextlib.contextmanager
def in_folder(other: Path) -> Iterator[None]:
    """Use another folder within the block, as the hooks of one run do."""
    token = _folder.set(other)
    try:
        yield
    finally:
        _folder.reset(token)


def stored_key() -> str:
    """Return the key that the hooks use, even if the file was written by hand; empty if there is none."""
    try:
        found = _KEY_LINE.search(curl_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return found[1] if found else ""


def curl_file() -> Path:
    """Return the file with the key."""
    return folder() / "curl"


def hook_file() -> Path:
    """Return the script that the hooks of coding agents run."""
    return folder() / "hook"


def late_file() -> Path:
    """Return the file that says until when no hook asks, because an answer was late."""
    return folder() / "late"


def write_private(file: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file atomically, with its mode set from the start."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        if os.name != "nt":  # where modes say nothing about other accounts
            os.fchmod(handle, mode)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
