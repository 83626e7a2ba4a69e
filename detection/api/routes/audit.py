"""The audit: who changed what, as a list and as files."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja import Field, Query, Router, Schema

from detection import exports
from detection.api.auth import ADMIN, principal_of, project_of
from detection.api.query_parameters import refuse_unknown
from detection.api.responses import LIST_AS_FILE, answer_list
from detection.api.schemas import Listed, Moment, Word
from detection.selectors import audit
from detection.selectors.audit import AuditFilters

router = Router(tags=["audit"])


class _Filters(Schema):
    actor: Word = ""
    action: Word = Field("", description="A whole action, session.stop, or its first word, session.")
    subject: Word = ""
    start: Moment | None = None
    end: Moment | None = None


class AuditQuery(_Filters):
    """Filters of the audit; start and end are half open."""

    cursor: Word = ""
    limit: int = Field(50, ge=1, le=500)


class AuditExportQuery(_Filters):
    """Filters of the export."""

    format: Literal["jsonl", "csv"] = "jsonl"
    limit: int = Field(exports.MAX_ROWS, ge=1, le=exports.MAX_ROWS)


class AuditOut(Schema):
    """One change."""

    id: str
    at: datetime
    actor: str = Field(description="A user name, key:<id>, command or system.")
    action: str
    subject: str
    before: Any | None
    after: Any | None
    address: str | None
    request_id: str


def _filters(query: _Filters) -> AuditFilters:
    return AuditFilters(**query.dict(include={"actor", "action", "subject", "start", "end"}))


@router.get(
    "/audit",
    auth=ADMIN,
    response={200: Listed[AuditOut]},
    operation_id="listAudit",
    summary="List changes",
)
def list_audit(request: HttpRequest, query: Query[AuditQuery]) -> HttpResponse:
    """List who changed what in the project, the newest first."""
    refuse_unknown(request, AuditQuery)
    page = audit.list_entries(project_of(request), _filters(query), query.cursor, query.limit)
    return answer_list((exports.audit_document(row) for row in page.items), page.next_cursor)


@router.get(
    "/audit/export",
    auth=ADMIN,
    operation_id="exportAudit",
    summary="Export changes",
    openapi_extra=LIST_AS_FILE,
)
def export_audit(request: HttpRequest, query: Query[AuditExportQuery]) -> HttpResponseBase:
    """Export up to 10,000 changes as JSON lines or CSV."""
    refuse_unknown(request, AuditExportQuery)
    principal = principal_of(request)
    rows = audit.export_entries(principal.project_id, _filters(query), query.limit)
    return exports.audit_file(rows, query.format, principal.project_slug)
