"""The Imports page: upload transcripts of past runs, watch the import, and read what loops have cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from detection.console import formatting, permalinks
from detection.console.access import ProjectRequest, actor_of, in_project, missing_role
from detection.integrations.labels import LabelError, Labels, checked_tags
from detection.models import Role, TranscriptImport
from detection.selectors.imports import find_import, list_imports
from detection.selectors.pages import BadCursor
from detection.services.errors import Invalid, NotFound, ServiceError
from detection.services.ingestion import import_files, transcript_imports
from detection.services.ingestion.transcript_files import MAX_UNPACKED_BYTES
from detection.services.ingestion.transcript_imports import Arrived
from detection.web.request_uploads import UploadedTranscript

KINDS = (
    ("claude-code", "Claude Code sessions (.jsonl)"),
    ("codex", "Codex sessions (.jsonl)"),
    ("gemini-cli", "Gemini CLI sessions (.jsonl)"),
    ("copilot", "Copilot CLI sessions (.jsonl)"),
    ("pi", "pi sessions (.jsonl)"),
    ("qwen-code", "Qwen Code sessions (.jsonl)"),
    ("cline", "Cline sessions (.messages.json)"),
    ("opencode", "OpenCode database (.db)"),
    ("kilo", "Kilo database (.db)"),
    ("openai", "OpenAI chat messages"),
    ("anthropic", "Anthropic messages"),
    ("responses", "OpenAI responses"),
    ("trace", "Trace: one call per line"),
)
_MB = 1024**2


@dataclass(frozen=True, slots=True)
class ImportLine:
    """An import as the pages show it."""

    row: TranscriptImport
    chip: str
    word: str
    name: str
    share: int
    step: str


@never_cache
@in_project(write_role=Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """List the imports, or create one from the files in the form."""
    announced = request.META.get("loopguard.upload_bytes")
    if announced is not None:
        return _admission(request, announced)
    if request.method != "POST":
        return _page(request)
    try:
        row = transcript_imports.create_import(
            request.project.pk,
            actor_of(request),
            kind=request.POST.get("kind", ""),
            files=_files(request),
            prices=_prices(request),
            labels=_labels(request),
        )
    except ServiceError as error:
        return _page(request, error)
    return redirect("console:import", request.project.slug, row.public_id)


def _admission(request: ProjectRequest, size: int) -> HttpResponse:
    """Respond before the front server reads the body: 204 to admit it, otherwise the page with the reason."""
    if not request.membership.allows(Role.OPERATOR):
        return missing_role(request, Role.OPERATOR)
    try:
        transcript_imports.check_new(request.project.pk)
        import_files.check_upload(size)
    except ServiceError as error:
        return _page(request, error)
    return HttpResponse(status=204)


def _page(request: ProjectRequest, error: ServiceError | None = None) -> HttpResponse:
    cursor = request.GET.get("cursor", "")
    try:
        rows = list_imports(request.project.pk, cursor=cursor)
    except BadCursor as bad:
        raise Http404 from bad
    context = {
        "imports": [_line(row) for row in rows.items],
        "next_cursor": rows.next_cursor,
        "has_open": any(row.is_open for row in rows.items),
        "kinds": KINDS,
        "given": request.POST,
        "error": error,
        "max_bytes": import_files.MAX_UPLOAD_BYTES,
        "max_mb": import_files.MAX_UPLOAD_BYTES // _MB,
        "max_unpacked_gb": MAX_UNPACKED_BYTES // 1024**3,
        "max_files": import_files.MAX_FILES,
    }
    return render(request, "integrations/imports.html", context, status=error.status if error else 200)


def _files(request: ProjectRequest) -> list[Arrived]:
    stopped = getattr(request, "upload_error", None)
    if stopped is not None:
        raise stopped
    uploads = cast("list[UploadedTranscript]", request.FILES.getlist("files"))
    return [Arrived(one.name, one.path) for one in uploads]


def _prices(request: ProjectRequest) -> tuple[float, float] | None:
    given = [request.POST.get(f"usd_{side}", "").strip() for side in ("input", "output")]
    if not any(given):
        return None
    try:
        return float(given[0] or 0), float(given[1] or 0)
    except ValueError:
        raise Invalid("Prices must be numbers, such as 3 and 15.", field="prices") from None


def _labels(request: ProjectRequest) -> Labels:
    tags = [tag.strip() for tag in request.POST.get("tags", "").split(",") if tag.strip()]
    try:
        return Labels(checked_tags(tags))
    except LabelError as error:
        raise Invalid(error.detail, field="tags", code=error.code) from None


@never_cache
@in_project()
@require_safe
def one(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Show an import: its progress, then its summary. Scripts get only that part, to refresh it."""
    row = find_import(request.project.pk, public_id)
    if row is None:
        raise Http404
    is_part = request.headers.get("HX-Request") == "true"
    context: dict[str, Any] = {"line": _line(row), "import": row, "summary": _summary(row)}
    return render(request, "integrations/_import.html" if is_part else "integrations/import.html", context)


@in_project(Role.OPERATOR)
@require_POST
def cancel(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Cancel an import."""
    try:
        transcript_imports.cancel_import(request.project.pk, public_id, actor_of(request))
        messages.success(request, "Import cancelled. Stored sessions are kept.")
    except NotFound:
        raise Http404 from None
    except ServiceError as error:
        messages.error(request, error.detail)
    return redirect("console:import", request.project.slug, public_id)


def _line(row: TranscriptImport) -> ImportLine:
    chip, word = formatting.job_state(row.state)
    names = [file["name"] for file in row.files]
    name = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    share = min(100, 100 * row.done_bytes // max(1, row.total_bytes))
    step = "Storing" if row.is_checked else "Checking"
    return ImportLine(row, chip, word, name, share, step)


def _summary(row: TranscriptImport) -> dict[str, Any] | None:
    """Return the stored summary, with links to this server's pages."""
    if row.summary is None:
        return None
    slug = row.project.slug
    summary: dict[str, Any] = row.summary
    return summary | {
        "worst": [
            loop | {"url": permalinks.incident_url(slug, loop["url"].rpartition("/")[2])}
            for loop in summary["worst"]
        ],
        "share": summary["loop_calls"] / summary["calls"] if summary["calls"] else 0,
    }
