"""The runs that OpenCode and Kilo keep in a database of SQLite, read into events of the API.

A database is read as lines, each the JSON value of one message with its parts. The client, which uploads no more of it
than that, writes the same lines.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from detection.integrations.events import ReportedEvent
from detection.integrations.session_files import (
    cost_of,
    count_of,
    moment_of,
    object_of,
    objects_of,
    prompt_events,
    response_events,
    result_event,
    text_of,
    usage_of,
)
from detection.integrations.session_names import session_name

HEADER: Final = b"SQLite format 3\x00"
MAX_MESSAGE_BYTES: Final = 32 * 1024**2
"""Of a message with its parts; as many as a line of a session file can have."""
MAX_MESSAGE_VALUES: Final = 2_000_000
"""The same, counted by commas: a parsed value takes up to a hundred bytes."""
_MAX_HEAP_BYTES: Final = 256 * 1024**2
"""Of SQLite in this process: three values, and the ids of a million messages, which it sorts in memory."""
_STEPS_BETWEEN: Final = 20_000
"""Steps of SQLite's machine between two looks at whether to go on; some milliseconds."""
_TABLES: Final = (
    "SELECT count(*) FROM sqlite_master t WHERE name IN ('message', 'part', 'session') AND type = 'table'"
    " AND rootpage > 0 AND NOT EXISTS (SELECT 1 FROM pragma_table_xinfo(t.name) WHERE hidden)"
)
"""Tables whose values are in the file: a view or a generated column is as large as it likes."""
_IDS: Final = "SELECT id FROM message ORDER BY session_id, id"
_MESSAGE: Final = (
    "SELECT m.session_id, s.parent_id, s.directory, m.data FROM message m"
    " JOIN session s ON s.id = m.session_id WHERE m.id = ?"
)
_PARTS: Final = "SELECT data FROM part WHERE message_id = ? ORDER BY id"


def lines_of_database(path: Path, keep_going: Callable[[], None]) -> Iterator[bytes]:
    """Yield the messages of a database as lines.

    Nothing in the database is executed or written: the schema is not trusted, and only these queries run.

    Raises
    ------
    sqlite3.Error
        If it is damaged, has other tables, or a message that is too large.
    Exception
        What `keep_going` raises, which is called all the time.
    """
    stopped: list[BaseException] = []

    def look() -> int:
        try:
            keep_going()
        except BaseException as error:  # noqa: BLE001 - raised again below; SQLite only knows that it is to end
            stopped.append(error)
            return 1
        return 0

    connection = _opened(path)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_MESSAGE_BYTES)
        connection.execute(f"PRAGMA hard_heap_limit = {_MAX_HEAP_BYTES}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.set_progress_handler(look, _STEPS_BETWEEN)
        if connection.execute(_TABLES).fetchone() != (3,):
            raise sqlite3.DataError("it has not the three tables of its program")
        for (message_id,) in connection.execute(_IDS):
            for session, parent, folder, data in connection.execute(_MESSAGE, [message_id]):
                texts = (part for (part,) in connection.execute(_PARTS, [message_id]))
                about, *parts = _bounded(itertools.chain([data], texts))
                yield line_of(message_id, session, parent, folder, about, parts)
    except MemoryError:
        raise sqlite3.DataError("it needs too much memory") from None
    except sqlite3.Error:
        if stopped:
            raise stopped[0] from None
        raise
    finally:
        connection.close()


def _opened(path: Path) -> sqlite3.Connection:
    """Open a database with what its program has not yet moved into the file, or the file alone where it cannot be."""
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(address, uri=True)
    try:
        connection.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError:
        connection.close()
        return sqlite3.connect(f"{address}&immutable=1", uri=True)
    return connection


def _bounded(values: Iterable[Any]) -> Iterator[str]:
    """Yield the texts of a message and its parts, as long as it may have more."""
    size = count = 0
    for value in values:
        text = value if isinstance(value, str) else ""
        size, count = size + len(text) + 1, count + text.count(",") + 1
        if size > MAX_MESSAGE_BYTES or count > MAX_MESSAGE_VALUES:
            raise sqlite3.DataError("a message is too large")
        yield text


def line_of(
    message_id: str, session: str, parent: Any, folder: Any, data: str, parts: Iterable[str]
) -> bytes:
    """Return a message as a line; what is no JSON in it is skipped."""
    document = {
        "message": message_id,
        "session": session,
        "parent": parent,
        "directory": folder,
        "data": _value(data),
        "parts": [*filter(None, map(_value, parts))],
    }
    return orjson.dumps(document, default=lambda _: None) + b"\n"


def _value(text: str) -> dict[str, object]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def is_opencode_entry(entry: Any) -> bool:
    """Return whether the JSON value of a line is a message of OpenCode or Kilo."""
    return isinstance(entry, dict) and isinstance(entry.get("parts"), list) and "directory" in entry


def opencode_events(entries: Iterable[Any], agent: str = "opencode") -> Iterator[ReportedEvent]:
    """Yield the events of a database, given the JSON value of each of its lines."""
    for entry in entries:
        if is_opencode_entry(entry):
            yield from _events(agent, entry)


def kilo_events(entries: Iterable[Any]) -> Iterator[ReportedEvent]:
    """Yield the events of a database of Kilo, which is made like that of OpenCode."""
    return opencode_events(entries, "kilo")


def _events(agent: str, entry: Mapping[str, Any]) -> Iterator[ReportedEvent]:
    data, parts = object_of(entry, "data"), objects_of(entry, "parts")
    parent = text_of(entry, "parent")
    common: ReportedEvent = {
        "session": session_name(text_of(entry, "session"), program=agent),
        "parent_session": session_name(parent, program=agent) if parent else None,
        "agent": agent,
        "occurred_at": moment_of(object_of(data, "time"), "created"),
        "cwd": text_of(entry, "directory"),
    }
    if data.get("role") == "user":
        texts = [
            text_of(part, "text")
            for part in parts
            if part.get("type") == "text" and not part.get("synthetic")
        ]
        if not parent:  # a sub-agent has no user
            yield from prompt_events(common, "\n".join(filter(None, texts)))
    elif data.get("role") == "assistant":
        calls = [part for part in parts if part.get("type") == "tool"]
        names: ReportedEvent = {"model": text_of(data, "modelID"), "backend": text_of(data, "providerID")}
        yield from response_events(
            common | names | {"round": text_of(entry, "message")},
            [
                (text_of(one, "callID"), text_of(one, "tool"), object_of(one, "state").get("input"))
                for one in calls
            ],
            _usage(data),
        )
        for call in calls:
            yield from _result(common, text_of(call, "callID"), object_of(call, "state"))
    if any(part.get("type") == "compaction" for part in parts):
        yield common | {"type": "compaction"}


def _result(common: ReportedEvent, call_id: str, state: Mapping[str, Any]) -> Iterator[ReportedEvent]:
    status, code = text_of(state, "status"), object_of(state, "metadata").get("exit")
    if status in ("completed", "error"):
        at: ReportedEvent = {
            "occurred_at": moment_of(object_of(state, "time"), "end") or common["occurred_at"]
        }
        has_failed = status == "error" or (isinstance(code, int) and code != 0)
        content = state.get("error") if status == "error" else state.get("output")
        yield result_event(common | at, call_id, content, is_error=has_failed)


def _usage(data: Mapping[str, Any]) -> Any:
    tokens = object_of(data, "tokens")
    cache = object_of(tokens, "cache")
    counts = {"read": count_of(cache, "read"), "write": count_of(cache, "write")}
    return usage_of(
        {**tokens, **counts},
        ("input", "read", "write"),
        ("output", "reasoning"),
        "read",
        "write",
        cost_of(data, "cost"),
    )
