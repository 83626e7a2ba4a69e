"""Routes of the audit log."""

from __future__ import annotations

from functools import partial

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from ninja import Query, Router

from detection.api.auth import ADMIN
from detection.api.pages import export_response, page_response, query_of
from detection.api.requests import ApiRequest
from detection.api.responses import LIST_AS_FILE
from detection.api.schemas.audit import (
    AuditEntrySchema,
    AuditExportQuerySchema,
    AuditFiltersSchema,
    AuditQuerySchema,
)
from detection.api.schemas.common import PageSchema
from detection.filtering.language import Term, Value, exact
from detection.filtering.time_ranges import TimeRange
from detection.selectors import audit
from detection.selectors.filters import ListQuery
from detection.selectors.lists import AUDIT
from detection.selectors.record_rows import AuditRow
from detection.selectors.row_fields import document_of

router = Router(tags=["audit"])


def _query(request: ApiRequest, query: AuditFiltersSchema) -> ListQuery:
    action = (Term("action", (exact(query.action), Value(f"{query.action}.*"))),) if query.action else ()
    span = TimeRange("", query.start, query.end)
    return query_of(request, AUDIT, query, {"actor": "actor", "subject": "subject"}, *action, range=span)


@router.get(
    "/audit",
    auth=ADMIN,
    response={200: PageSchema[AuditEntrySchema]},
    summary="List audit entries",
)
def list_audit_entries(request: ApiRequest, query: Query[AuditQuerySchema]) -> HttpResponse:
    """List changes in the project, newest first."""
    document = partial(document_of, kind=AuditRow)
    return page_response(request, query, _query(request, query), audit.list_entries, document)


@router.get(
    "/audit/export",
    auth=ADMIN,
    summary="Export audit entries",
    openapi_extra=LIST_AS_FILE,
)
def export_audit_entries(request: ApiRequest, query: Query[AuditExportQuerySchema]) -> HttpResponseBase:
    """Export up to 100,000 changes as JSON lines or CSV."""
    return export_response(request, query, _query(request, query))
