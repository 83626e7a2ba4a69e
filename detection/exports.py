"""Lists as files, for API and console: JSON lines for machines, CSV for people with spreadsheets, safe to open there."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson
from django.http import StreamingHttpResponse

from detection.models import AuditEntry

SCHEMA_VERSION: Final = "1"
MAX_ROWS: Final = 10_000
AUDIT_COLUMNS: Final = ("id", "at", "actor", "action", "subject", "before", "after", "address", "request_id")
_FORMULA_STARTS: Final = tuple("=+-@\t\r\n\x00\uff1d\uff0b\uff0d\uff20")


def audit_document(row: AuditEntry) -> dict[str, Any]:
    """Return an entry of the audit as API and files show it."""
    return {
        "id": str(row.pk),
        "at": row.at.isoformat(),
        "actor": row.actor,
        "action": row.action,
        "subject": row.subject,
        "before": row.before,
        "after": row.after,
        "address": row.address,
        "request_id": row.request_id,
    }


def audit_file(rows: Iterable[AuditEntry], file_format: str, project: str) -> StreamingHttpResponse:
    """Answer with entries of the audit; `file_format` is csv or jsonl, `project` a slug for the file's name."""
    documents, name = (audit_document(row) for row in rows), f"loopguard-audit-{project}"
    if file_format != "csv":
        return as_json_lines(documents, name)
    flat = (
        one | {side: orjson.dumps(one[side]).decode() if one[side] else "" for side in ("before", "after")}
        for one in documents
    )
    return as_csv(flat, AUDIT_COLUMNS, name)


def as_json_lines(documents: Iterable[dict[str, Any]], name: str) -> StreamingHttpResponse:
    """Answer with one document a line."""
    return _file(
        (orjson.dumps(document) + b"\n" for document in documents), "application/x-ndjson", f"{name}.jsonl"
    )


def as_csv(documents: Iterable[dict[str, Any]], columns: Iterable[str], name: str) -> StreamingHttpResponse:
    """Answer with RFC 4180, the columns' names first; text that a spreadsheet would take for a formula is quoted."""
    return _file(_csv_lines(documents, [*columns]), "text/csv; charset=utf-8", f"{name}.csv")


def _csv_lines(documents: Iterable[dict[str, Any]], columns: list[str]) -> Iterator[bytes]:
    line = _Line()
    writer = csv.writer(line)
    writer.writerow(columns)
    yield line.text.encode()
    for document in documents:
        writer.writerow([_cell(document[column]) for column in columns])
        yield line.text.encode()


class _Line:
    text = ""

    def write(self, text: str) -> None:
        self.text = text


def _cell(value: Any) -> Any:
    """Return a cell: numbers as they are, text guarded."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA_STARTS) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value


def _file(lines: Iterator[bytes], content_type: str, name: str) -> StreamingHttpResponse:
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "X-LoopGuard-Schema": SCHEMA_VERSION,
        "Cache-Control": "no-store",
    }
    return StreamingHttpResponse(lines, content_type=content_type, headers=headers)
