"""Lists as files, for API and console: JSON lines for programs, and CSV that is safe to open in spreadsheets."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson
from django.http import StreamingHttpResponse
from django.utils import timezone

from detection.selectors import alerts, approvals, audit, incidents, insights, loops, sessions, statistics
from detection.selectors.filters import ListQuery
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.loops import LoopRow
from detection.selectors.pages import Page, all_rows
from detection.selectors.prices import known_cost
from detection.selectors.record_rows import ApprovalRow, AuditRow, NotificationRow
from detection.selectors.row_fields import document_of, shown_fields
from detection.selectors.session_rows import SessionRow
from detection.web.documents import incident_document, loop_document, session_document

SCHEMA_VERSION: Final = "1"
MAX_ROWS: Final = 100_000
"""Rows of a file."""
PART_BYTES: Final = 64 * 1024
"""Approximate size of the parts of a response."""
_FORMULA_STARTS: Final = tuple("=+-@\t\r\n\x00\uff1d\uff0b\uff0d\uff20")


def _session(row: SessionRow, project: str) -> dict[str, object]:
    cost = known_cost(row)
    figures = {"tokens": row.token_count or None, "cost_usd": None if cost is None else float(cost)}
    return session_document(row, project) | figures


def _with_known_cost(
    document: Callable[[Any, str], dict[str, object]],
) -> Callable[[Any, str], dict[str, object]]:
    """Return the document without a cost that nobody reported; one that counts elsewhere is zero."""

    def of(row: IncidentRow | LoopRow, project: str) -> dict[str, object]:
        unknown = {} if row.cost_usd or row.cost_note else {"cost_usd": None}
        return document(row, project) | unknown

    return of


def _columns(row: Any) -> list[str]:
    return [field.name for field in shown_fields(row)]


@dataclass(frozen=True, slots=True)
class ExportedList:
    """How a list is exported.

    Attributes
    ----------
    read
        Returns a page: project id, query, cursor, limit, and what else the list needs.
    columns
        Of the table: the fields of the document without its links.
    document
        Returns a row as JSON document: the row, the project's slug.
    """

    read: Callable[..., Page[Any]]
    columns: list[str]
    document: Callable[[Any, str], dict[str, object]]


EXPORTED_LISTS: Final = {
    "sessions": ExportedList(sessions.list_sessions, _columns(SessionRow), _session),
    "incidents": ExportedList(
        incidents.list_incidents, _columns(IncidentRow), _with_known_cost(incident_document)
    ),
    "loops": ExportedList(loops.list_loops, _columns(LoopRow), _with_known_cost(loop_document)),
    "approvals": ExportedList(
        approvals.list_approvals, _columns(ApprovalRow), lambda row, _: document_of(row, ApprovalRow)
    ),
    "notifications": ExportedList(
        alerts.list_notifications, _columns(NotificationRow), lambda row, _: document_of(row, NotificationRow)
    ),
    "audit": ExportedList(audit.list_entries, _columns(AuditRow), lambda row, _: document_of(row, AuditRow)),
    "statistics": ExportedList(
        insights.list_groups,
        ["key", *_columns(statistics.Numbers), *insights.RATE_COLUMNS],
        lambda row, _: row.as_document(),
    ),
}
"""By the name of the list."""


def list_file(
    project_id: int,
    project: str,
    query: ListQuery,
    file_format: str,
    *,
    limit: int = MAX_ROWS,
    **more: Any,
) -> StreamingHttpResponse:
    """Answer with the rows of a list, in its order; a page of them is in memory at a time.

    Parameters
    ----------
    project
        The project's slug, for links and the file's name.
    file_format
        ``csv`` or ``jsonl``.
    more
        What else the list needs: `with_server` for the audit's entries of the whole server, `by` for statistics.
    """
    known = EXPORTED_LISTS[query.spec.name]
    rows = all_rows(lambda cursor, size: known.read(project_id, query, cursor, size, **more), limit)
    documents = (known.document(row, project) for row in rows)
    grouped = f"-by-{more['by']}" if "by" in more else ""
    name = f"loopguard-{query.spec.name}{grouped}-{project}-{timezone.now():%Y-%m-%dT%H%M%SZ}"
    if file_format == "csv":
        return _file(_csv_lines(known.columns, documents), "text/csv; charset=utf-8", f"{name}.csv")
    lines = (orjson.dumps(document) + b"\n" for document in documents)
    return _file(lines, "application/x-ndjson", f"{name}.jsonl")


def _csv_lines(columns: Iterable[str], documents: Iterable[dict[str, object]]) -> Iterator[bytes]:
    """Yield RFC 4180, first the columns' names; text that a spreadsheet would interpret as a formula is quoted."""
    line = _Line()
    writer = csv.writer(line)
    writer.writerow(columns)
    yield line.text.encode()
    for document in documents:
        writer.writerow(_cell(document[name]) for name in columns)
        yield line.text.encode()


class _Line:
    text = ""

    def write(self, text: str) -> None:
        self.text = text


def _cell(value: Any) -> Any:
    """Return a cell: numbers to a millionth, text guarded, objects and lists as JSON."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict | list):
        value = orjson.dumps(value).decode() if value else ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA_STARTS) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value


def _parts(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines in parts of `PART_BYTES`: every part wakes the thread that sends it."""
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= PART_BYTES:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    if waiting:
        yield b"".join(waiting)


def _file(lines: Iterator[bytes], content_type: str, name: str) -> StreamingHttpResponse:
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "X-LoopGuard-Schema": SCHEMA_VERSION,
        "Cache-Control": "no-store",
    }
    return StreamingHttpResponse(_parts(lines), content_type=content_type, headers=headers)
