"""Routes of imports of transcripts. The body of an upload is a file, which goes to disk as it is read."""

from __future__ import annotations

import shutil
from typing import Final

from django.conf import settings
from django.http import HttpResponse
from ninja import Query, Router

from detection.api import request_bodies
from detection.api.auth import ADMIN, READ, ApiKeyAuth
from detection.api.pages import page_response
from detection.api.problems import Problem
from detection.api.query_parameters import (
    check_parameters,
    existing,
    existing_name,
    labels_of_request,
    target,
)
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import empty_response, json_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.imports import ImportQuerySchema, ImportRequestSchema, ImportSchema
from detection.models import KeyScope, TranscriptImport
from detection.selectors import imports as selector
from detection.selectors.row_fields import document_of
from detection.services.ingestion import import_files, transcript_imports
from detection.services.ingestion.transcript_imports import Arrived

router = Router(tags=["imports"])
INGEST: Final = ApiKeyAuth(KeyScope.INGEST)
MEDIA_TYPES: Final = (
    "application/json",
    "application/x-ndjson",
    "application/jsonl",
    "application/gzip",
    "application/zip",
    "application/octet-stream",
)
_BODY: Final = {
    "requestBody": {
        "required": True,
        "description": "The file, as it is: JSON or JSON lines, also "
        "compressed with gzip, or a zip archive of such files.",
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in MEDIA_TYPES},
    }
}


def _document(row: TranscriptImport, project: str) -> dict[str, object]:
    page = f"{settings.PUBLIC_URL}/p/{project}/connect/imports/{row.public_id}"
    return document_of(row, ImportSchema, links={"import": page})


@router.post(
    "/imports",
    auth=INGEST,
    response={202: ImportSchema},
    summary="Create an import",
    openapi_extra=_BODY,
)
def create_import(request: ApiRequest, query: Query[ImportRequestSchema]) -> HttpResponse:
    """Upload a file with past runs of up to 512 MB; a worker imports it.

    Imported sessions send no alerts, and get the tags and metadata of the headers.
    """
    check_parameters(request, ImportRequestSchema)
    request_bodies.media_type(request, MEDIA_TYPES)
    labels = labels_of_request(request)
    project_id = request.principal.project_id
    announced = request.META.get("loopguard.upload_bytes")
    if announced is not None:
        transcript_imports.check_new(project_id)
        import_files.check_upload(announced)
        return empty_response()
    if not (request.META.get("CONTENT_LENGTH") or "").isdecimal():
        raise Problem(411, "length_required", "`Content-Length` is required.")
    import_files.check_upload(int(request.META["CONTENT_LENGTH"]))
    prices = None
    if query.usd_per_million_input is not None or query.usd_per_million_output is not None:
        prices = query.usd_per_million_input or 0.0, query.usd_per_million_output or 0.0
    path = import_files.new_file()
    try:
        with path.open("wb") as file:
            shutil.copyfileobj(request, file)
        row = transcript_imports.create_import(
            project_id,
            actor_of(request),
            kind=query.kind,
            files=[Arrived(query.name, path)],
            prices=prices,
            labels=labels,
        )
    except OSError as error:
        raise import_files.storage_full() from error
    finally:
        path.unlink(missing_ok=True)
    return json_response(_document(row, request.principal.project_slug), 202)


@router.get("/imports", auth=READ, response={200: PageSchema[ImportSchema]}, summary="List imports")
def list_imports(request: ApiRequest, query: Query[ImportQuerySchema]) -> HttpResponse:
    """List the imports of the project, newest first."""
    slug = request.principal.project_slug
    return page_response(request, query, None, selector.list_imports, lambda row: _document(row, slug))


@router.get("/imports/{import_id}", auth=READ, response={200: ImportSchema}, summary="Get an import")
def get_import(request: ApiRequest, import_id: str) -> HttpResponse:
    """Get an import: its progress, then its summary."""
    row = existing(selector.find_import(request.principal.project_id, existing_name(import_id)))
    return json_response(_document(row, request.principal.project_slug))


@router.post(
    "/imports/{import_id}/cancel",
    auth=ADMIN,
    response={200: ImportSchema},
    summary="Cancel an import",
)
def cancel_import(request: ApiRequest, import_id: str) -> HttpResponse:
    """Cancel an import that is waiting or running. What has been stored is kept."""
    row = transcript_imports.cancel_import(*target(request, import_id))
    return json_response(_document(row, request.principal.project_slug))
