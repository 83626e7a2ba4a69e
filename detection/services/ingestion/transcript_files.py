"""Files of past runs, read as one stream of events: plain, compressed with gzip, or members of a zip archive.

Neither a file nor a session is ever in memory as a whole, and what a hostile file can unpack to is bounded. An error
names the file and the line or the run.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import orjson

from detection.integrations.cline_files import cline_events, is_cline_entry
from detection.integrations.codex_files import codex_events, is_codex_entry
from detection.integrations.copilot_files import copilot_events, is_copilot_entry
from detection.integrations.events import ReportedEvent
from detection.integrations.gemini_files import gemini_events, is_gemini_entry
from detection.integrations.opencode_files import (
    HEADER,
    is_opencode_entry,
    kilo_events,
    lines_of_database,
    opencode_events,
)
from detection.integrations.pi_files import is_pi_entry, pi_events
from detection.integrations.qwen_files import is_qwen_entry, qwen_events
from detection.integrations.session_names import bounded, session_name
from detection.integrations.traces import Line, events_of, responses
from detection.integrations.transcripts import (
    MESSAGE_SHAPES,
    MessageShape,
    TranscriptError,
    claude_code_events,
    events_of_message,
    is_claude_code_entry,
    message_events,
)

_Reader = Callable[[Iterator[Any]], Iterator[ReportedEvent]]
SESSION_FILES: Final[dict[str, tuple[_Reader, Callable[[Any], bool]]]] = {
    "qwen-code": (qwen_events, is_qwen_entry),
    "claude-code": (claude_code_events, is_claude_code_entry),
    "codex": (codex_events, is_codex_entry),
    "gemini-cli": (gemini_events, is_gemini_entry),
    "copilot": (copilot_events, is_copilot_entry),
    "pi": (pi_events, is_pi_entry),
    "cline": (cline_events, is_cline_entry),
    "opencode": (opencode_events, is_opencode_entry),
    "kilo": (kilo_events, is_opencode_entry),
}
"""Session files of coding agents: what reads their JSON values, and what tells one of these."""
KINDS: Final = (*SESSION_FILES, *MESSAGE_SHAPES, "trace")
ENDINGS: Final = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
ENDINGS_OF: Final = {"cline": (".messages.json",), "opencode": (".db",), "kilo": (".db",)}
"""Of kinds whose folders have other files beside the runs."""
MAX_DOCUMENT_BYTES: Final = 32 * 1024**2
"""Maximum size of a text that is parsed at once: a line, or a document that is not one JSON value per line."""
MAX_VALUES: Final = 2_000_000
"""Values of one text, counted by commas: a parsed value takes up to a hundred bytes."""
MAX_UNPACKED_BYTES: Final = 4 * 1024**3
MAX_LINES: Final = 20_000_000
"""Also empty ones, of which a kilobyte unpacks to a million. A line of 4 GB in so many has 200 characters."""
MAX_MEMBERS: Final = 10_000
MAX_TURN_CALLS: Final = 1_000
_MAX_DIRECTORY_BYTES: Final = 4 * 1024**2
_FEW_BYTES: Final = 1024**2
_LINES_BETWEEN: Final = 256
_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_ENCRYPTED: Final = 0x1
_DAMAGE: Final = (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)


class LimitExceeded(TranscriptError):
    """The files are larger than files of any kind may be."""


@dataclass(slots=True)
class Allowance:
    """What may still be read of the files of one import, all together.

    Attributes
    ----------
    size, lines
        How many more bytes, after unpacking, and lines.
    keep_going
        Called often while something is read, also where it brings no event; raises an exception to end the reading.
    """

    size: int
    lines: int
    keep_going: Callable[[], None]


def allowance(keep_going: Callable[[], None] = lambda: None) -> Allowance:
    """Return what may be read of the files of an import."""
    return Allowance(MAX_UNPACKED_BYTES, MAX_LINES, keep_going)


@dataclass(slots=True)
class TranscriptFile:
    """One file, or one member of an archive, to be read once.

    Attributes
    ----------
    name
        For people.
    place
        Names the sessions of records that do not name them; the same at every import.
    is_path
        Whether the place alone tells files apart. Files of one name that people upload may be of different runs.
    position
        Returns how many bytes of the outer file are read.
    lines, skipped_lines, first_skipped
        Lines so far, those that are not JSON, and the number of the first of them.
    """

    name: str
    place: str
    stream: BinaryIO
    position: Callable[[], int]
    allowed: Allowance
    is_path: bool = False
    lines: int = 0
    skipped_lines: int = 0
    first_skipped: int = 0

    def error(self, problem: str) -> TranscriptError:
        """Return the error of the current line."""
        return TranscriptError(f"{self.name}, line {self.lines}: {problem}")


def files_of(path: Path, name: str, allowed: Allowance, place: str = "") -> Iterator[TranscriptFile]:
    """Yield the transcripts of a file: itself, or the members of an archive that are named like transcripts.

    Parameters
    ----------
    name
        Of the file, for people.
    allowed
        What may be read of this file and the next ones.
    place
        The path of the file, if that tells it from all others; see `TranscriptFile`. Within an archive, the member's
        name.

    Raises
    ------
    TranscriptError
        If the archive is damaged, encrypted or too large, or has no transcript.
    OSError
        If the file cannot be read.
    """
    with _Upload(path, allowed.keep_going) as raw:
        start = raw.read(len(HEADER))
        if start[:4] in _ZIP:
            yield from _members(raw, name, allowed)
        elif start == HEADER:
            stream = cast("BinaryIO", io.BufferedReader(_Lines(lines_of_database(path, allowed.keep_going))))
            yield TranscriptFile(name, place or name, stream, raw.tell, allowed, bool(place))
        else:
            raw.seek(0)
            stream = _unpacked(io.BufferedReader(raw))
            yield TranscriptFile(name, place or name, stream, raw.tell, allowed, bool(place))


class _Upload(io.FileIO):
    """A file that is read in bounded pieces, because an archive itself declares the size of its directory."""

    def __init__(self, path: Path, keep_going: Callable[[], None]) -> None:
        super().__init__(path)
        self._keep_going = keep_going

    def readinto(self, buffer: Any, /) -> int | None:
        self._keep_going()  # what is read may unpack to nothing
        return super().readinto(buffer)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MAX_DIRECTORY_BYTES:
            raise TranscriptError("The directory of the archive is too large.")
        self._keep_going()
        return super().read(size) or b""


class _Lines(io.RawIOBase):
    """A stream of what an iterator yields."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        super().__init__()
        self._lines, self._rest = lines, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._lines, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _members(raw: _Upload, name: str, allowed: Allowance) -> Iterator[TranscriptFile]:
    try:
        archive = zipfile.ZipFile(raw)
    except _DAMAGE:
        raise TranscriptError(f"{name} is not a complete zip archive.") from None
    members = [
        one
        for one in archive.infolist()
        if one.filename.endswith(ENDINGS) and not one.filename.startswith("__MACOSX/")
    ]
    if not members:
        raise TranscriptError(f"{name} has no .jsonl or .json file.")
    if len(members) > MAX_MEMBERS:
        raise TranscriptError(f"{name} has more than {MAX_MEMBERS:,} files.")
    for member in members:
        shown = f"{name}/{bounded(member.filename)}"
        if member.flag_bits & _ENCRYPTED:
            raise TranscriptError(f"{shown} is encrypted.")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise TranscriptError(f"{shown} is compressed by another method than deflate.")
        try:
            with archive.open(member) as stream:
                unpacked = _unpacked(io.BufferedReader(cast("io.RawIOBase", stream)))
                yield TranscriptFile(shown, bounded(member.filename), unpacked, raw.tell, allowed)
        except _DAMAGE:
            raise TranscriptError(f"{shown} is damaged.") from None


def _unpacked(stream: io.BufferedReader) -> BinaryIO:
    is_packed = stream.peek(2)[:2] == b"\x1f\x8b"
    return cast("BinaryIO", gzip.GzipFile(fileobj=stream)) if is_packed else stream


def events(kind: str, file: TranscriptFile) -> Iterator[tuple[str, ReportedEvent]]:
    """Yield the events of a file, each with the name of its session.

    Of coding agents, lines that are not JSON are skipped and counted, because a run that is killed leaves one; the
    first line must be JSON, and one line at least must be of the agent.

    Raises
    ------
    TranscriptError
        For the first line or run that is not of this kind or too large, and for a damaged file.
    """
    with _explained(file):
        if kind in SESSION_FILES:
            read, belongs = SESSION_FILES[kind]
            for event in read(_entries_of(kind, file, belongs)):
                yield event["session"], event
        elif kind == "trace":
            for response in responses(_calls(file)):
                for event in events_of(response):
                    yield bounded(event["session"]), event
        else:
            yield from _runs(file, MESSAGE_SHAPES[MESSAGE_SHAPES.index(cast("MessageShape", kind))])


@contextmanager
def _explained(file: TranscriptFile) -> Iterator[None]:
    """Say of what is no file of its form that it is damaged."""
    try:
        yield
    except sqlite3.Error as error:
        raise TranscriptError(
            f"{file.name} is no database of a coding agent, or damaged ({error})."
        ) from None
    except _DAMAGE:
        raise file.error("the compressed data are damaged or end too early.") from None


def guess_kind(file: TranscriptFile) -> str:
    """Return the kind that a file seems to be, judged by its beginning; empty if it is none.

    Raises
    ------
    TranscriptError, OSError
        If the beginning cannot be read.
    """
    with _explained(file):
        line = next(_lines(file), b"null")
        first = _parsed(file, line, default=file)
        if first is file:
            try:
                first = _document(file, line)
            except TranscriptError:
                return ""
    if isinstance(first, dict) and "session" in first and "tool" in first:
        return "trace"
    agent = next((kind for kind, (_, belongs) in SESSION_FILES.items() if belongs(first)), "")
    if agent:
        return agent
    messages = _list_of(first)
    if not isinstance(messages, list):
        return ""
    if not all(isinstance(message, dict) for message in messages):
        return ""
    for shape in MESSAGE_SHAPES:
        if any(event["type"] == "call" for event in message_events(messages, shape, "s")):
            return shape
    return ""


def _lines(file: TranscriptFile) -> Iterator[bytes]:
    """Yield the lines of a file that are not empty."""
    while line := file.stream.readline(MAX_DOCUMENT_BYTES + 1):
        file.lines += 1
        _spend(file, len(line))
        file.allowed.lines -= 1
        if file.allowed.lines < 0:
            raise LimitExceeded(f"{file.name}: the files have more than {MAX_LINES:,} lines.")
        if file.lines % _LINES_BETWEEN == 0 or len(line) > _FEW_BYTES:
            file.allowed.keep_going()
        if len(line) > MAX_DOCUMENT_BYTES:
            raise file.error(f"longer than {MAX_DOCUMENT_BYTES // 1024**2} MB.")
        if not line.isspace():
            yield line


def _spend(file: TranscriptFile, size: int) -> None:
    file.allowed.size -= size
    if file.allowed.size < 0:
        raise LimitExceeded(f"{file.name}: the files unpack to more than {MAX_UNPACKED_BYTES // 1024**3} GB.")


_REQUIRED: Final = object()


def _parsed(file: TranscriptFile, text: bytes, default: Any = _REQUIRED) -> Any:
    if len(text) > _FEW_BYTES and text.count(b",") > MAX_VALUES:
        raise file.error(f"more than {MAX_VALUES:,} values.")
    try:
        return orjson.loads(text)
    except ValueError as error:
        if default is _REQUIRED:
            raise file.error(f"not JSON ({error}).") from None
        return default


def _entries(file: TranscriptFile) -> Iterator[Any]:
    """Yield the JSON values of the lines, or the document that a file is whose first line is none."""
    lines = _lines(file)
    first = next(lines, b"")
    if not first:
        return
    entry = _parsed(file, first, file)
    yield _document(file, first) if entry is file else entry
    for line in lines:
        entry = _parsed(file, line, file)
        if entry is not file:
            yield entry
            continue
        file.skipped_lines += 1
        file.first_skipped = file.first_skipped or file.lines


def _entries_of(kind: str, file: TranscriptFile, belongs: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield the entries of a session file.

    Raises
    ------
    TranscriptError
        At the end, if none was one of the agent: the file is of another kind.
    """
    is_empty, is_known = True, False
    for entry in _entries(file):
        is_empty, is_known = False, is_known or belongs(entry)
        yield entry
    if not (is_empty or is_known):
        raise TranscriptError(f"{file.name}: no line is one of a session of {kind}.")


def _calls(file: TranscriptFile) -> Iterator[Line]:
    """Yield the lines of a trace, with a bounded number of them in one turn."""
    turn, count = None, 0
    for line in _lines(file):
        event = _parsed(file, line)
        if not isinstance(event, dict) or not isinstance(event.get("session"), str | int):
            raise file.error("not a call of a trace: `session` is required.")
        if not isinstance(event.get("tool"), str):
            raise file.error("not a call of a trace: `tool` is required.")
        now = (event.get("source"), event["session"], event.get("turn"))
        turn, count = now, count + 1 if now == turn else 1
        if count > MAX_TURN_CALLS and event.get("turn") is not None:
            raise file.error(f"a turn has more than {MAX_TURN_CALLS:,} calls.")
        yield event


def _runs(file: TranscriptFile, shape: MessageShape) -> Iterator[tuple[str, ReportedEvent]]:
    for number, run in enumerate(_lists(file)):
        messages = _list_of(run)
        try:
            opening = "" if file.is_path else _opening(messages, shape)
            name = session_name("", program=shape, place=f"{file.place} {number}{opening}")
            yield from ((name, event) for event in message_events(messages, shape, name))
        except TranscriptError as error:
            raise TranscriptError(f"{file.name}, run {number + 1}: {error}") from None


def _opening(messages: Any, shape: MessageShape) -> str:
    """Return a digest of a run up to its first call: it stays the same when the run grows."""
    opening = hashlib.blake2b(digest_size=16)
    for message in messages if isinstance(messages, list) else ():
        opening.update(orjson.dumps(message))
        if isinstance(message, dict) and any(
            event["type"] == "call" for event in events_of_message(message, shape)
        ):
            break
    return f" {opening.hexdigest()}"


def _lists(file: TranscriptFile) -> Iterator[Any]:
    """Yield the message lists of a file: of one document, or of one a line. Its first line decides which it is."""
    lines = _lines(file)
    first = next(lines, b"")
    if not first:
        return
    run = _parsed(file, first, file)
    if run is file:
        yield from _runs_of_document(_document(file, first))
        return
    yield from _runs_of_document(run)
    yield from map(partial(_parsed, file), lines)


def _document(file: TranscriptFile, first: bytes) -> Any:
    """Return the JSON value of a whole file, of which the first line is read."""
    rest = file.stream.read(MAX_DOCUMENT_BYTES - len(first) + 1)
    _spend(file, len(rest))
    if len(first) + len(rest) > MAX_DOCUMENT_BYTES:
        raise TranscriptError(
            f"{file.name}: a document can have at most {MAX_DOCUMENT_BYTES // 1024**2} MB. Write one run per line."
        )
    file.lines = 1
    return _parsed(file, first + rest)


def _runs_of_document(document: Any) -> list[Any]:
    is_list_of_runs = isinstance(document, list) and document and all(map(_is_run, document))
    return document if is_list_of_runs else [document]


def _is_run(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and isinstance(_list_of(value), list))


def _list_of(document: Any) -> Any:
    if isinstance(document, dict):
        return document.get("messages", document.get("input", document))
    return document
