"""Cuts long strings out of JSON as it arrives: a hook body with a 20 MB file needs as little memory as a small one.

Nothing is parsed: outside strings, every byte is passed on, so invalid JSON stays invalid. A cut string ends with its
length and a digest of the whole, in the form of `CUT`, and is then no longer than `MAX_STRING_BYTES`: cutting again
changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

MAX_STRING_BYTES: Final = 64 * 1024
MAX_RAW_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of a body whose long strings are cut."""
CUT: Final = re.compile(r"… (\d{1,10}) characters, digest ([0-9a-f]{32})\Z")
_MARK_BYTES: Final = 128
_INSIDE: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_CONTINUATIONS: Final = bytes(range(0x80, 0xC0))


class LongTextCutter:
    """Cuts the strings of one document.

    Attributes
    ----------
    received, passed
        Bytes so far, and those of the result.
    """

    def __init__(self) -> None:
        self.received = self.passed = 0
        self._is_string = self._is_escaped = False
        self._start()

    def _start(self) -> None:
        self._text = bytearray()
        self._characters = 0
        self._digest: Any = None

    def feed(self, data: bytes) -> bytes:
        """Return the output for the next bytes; the beginning of a string is held until its end."""
        self.received += len(data)
        out = bytearray()
        at = 0
        while at < len(data):
            if not self._is_string:
                quote = data.find(b'"', at)
                end = len(data) if quote < 0 else quote + 1
                out += data[at:end]
                self._is_string = quote >= 0
                at = end
            elif self._is_escaped:
                self._is_escaped = False
                # The four digits behind a `u` are no characters of their own.
                self._add(data[at : at + 1], -4 if data[at] == ord("u") else 0)
                at += 1
            else:
                found = _INSIDE.match(data, at)
                end = len(data) if found is None else found.end()
                self._add(data[at:end])
                at = end
                if at < len(data) and data[at] == ord('"'):
                    out += self._end()
                    at += 1
                elif at < len(data):  # a backslash at the end of these bytes
                    self._add(b"\\", -1)
                    self._is_escaped = True
                    at += 1
        self.passed += len(out)
        return bytes(out)

    def finish(self) -> bytes:
        """Return the rest of an unterminated string."""
        rest = bytes(self._text)
        self.passed += len(rest)
        return rest

    def _add(self, data: bytes, more: int = 0) -> None:
        escapes = _ESCAPE.findall(data)
        more -= len(escapes) + 4 * escapes.count(b"\\u")
        self._characters += len(data.translate(None, _CONTINUATIONS)) + more
        if self._digest is not None:
            self._digest.update(data)
            return
        self._text += data
        if len(self._text) > MAX_STRING_BYTES:
            self._digest = hashlib.blake2b(self._text, digest_size=16)
            del self._text[_boundary(self._text, MAX_STRING_BYTES - _MARK_BYTES) :]

    def _end(self) -> bytes:
        text = bytes(self._text)
        if self._digest is not None:
            text += f"… {self._characters} characters, digest {self._digest.hexdigest()}".encode()
        self._is_string = False
        self._start()
        return text + b'"'


def _boundary(text: bytearray, at: int) -> int:
    """Return the last position up to `at` that is not inside a character or an escape."""
    while at and text[at] & 0xC0 == 0x80:
        at -= 1
    slash = text.rfind(b"\\", max(0, at - 12), at)
    if slash < 0:
        return at
    # The first of several backslashes always begins an escape.
    while slash and text[slash - 1] == ord("\\"):
        slash -= 1
    return slash


def cut_long_texts(body: bytes) -> bytes:
    """Return a whole document with its long strings cut."""
    cutter = LongTextCutter()
    return cutter.feed(body) + cutter.finish()
