"""The Erasure page of a project: find a session or an agent, erase it, and read the receipts."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from detection.console.access import ProjectRequest, actor_of, in_project
from detection.filtering.language import FilterError
from detection.models import Erasure, ErasureOf, Role, Session
from detection.selectors.erasures import removed
from detection.selectors.pages import BadCursor
from detection.selectors.search import search
from detection.services.errors import Invalid, ServiceError
from detection.services.redaction.redaction import Redactor
from detection.services.retention import erasure
from detection.services.search.records import record_search
from detection.services.sessions.session_names import stored_session_name

MAX_SHOWN = 100
SEARCH_SECONDS = 3.0
"""A person who erases would rather wait than continue in steps."""
_CONTENTS = "contents"
_METADATA = "metadata"
_WORDS = {"what_ifs": "what-ifs"}


@never_cache
@in_project(Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """Show what an erasure of a name would remove, or request it. Below it, the receipts."""
    project_id = request.project.pk
    given = request.POST if request.method == "POST" else request.GET
    of, name = given.get("of", ErasureOf.SESSION), given.get("name", "")
    if of in (_CONTENTS, _METADATA):
        return _page_of_sessions(request, of, name)
    if of not in ErasureOf.values:
        of = ErasureOf.SESSION
    redactor = Redactor.of_project(request.project)
    is_session = of == ErasureOf.SESSION
    name = stored_session_name(project_id, redactor, name) if is_session else redactor.name(name)
    error: ServiceError | None = None
    if request.method == "POST":
        try:
            if not _is_retry(request, of, name):
                _confirm(request, erasure.preview(project_id, of, name)["sessions"])
            row = erasure.request_erasure(project_id, of, name, actor_of(request))
        except ServiceError as problem:
            error = problem
        else:
            messages.success(request, f"Erasure {row.public_id} requested. A worker starts within a second.")
            return redirect("console:erasures", request.project.slug)
    is_nameable = 0 < len(name) <= 256 and "\x00" not in name
    found = erasure.preview(project_id, of, name) if is_nameable else None
    if not given and request.project.is_searchable:
        of = _CONTENTS  # what the page is mostly opened for
    return _render(request, {"of": of, "name": name, "found": found}, error)


def _confirm(request: ProjectRequest, sessions: int) -> None:
    """Check that the person has typed how many sessions are erased."""
    if request.POST.get("confirm", "").strip() != str(sessions):
        raise Invalid(f"type the number of sessions, {sessions:,}, to confirm.", field="confirm")


def _is_retry(request: ProjectRequest, of: str, name: str) -> bool:
    """Return whether this repeats an erasure that was confirmed before and has failed."""
    rows = Erasure.objects.filter(project_id=request.project.pk, of=of, name=name, finished_at=None)
    return rows.filter(public_id=request.POST.get("retry", "")[:40]).exists()


def _page_of_sessions(request: ProjectRequest, of: str, text: str) -> HttpResponse:
    """Show the sessions of a customer, to be ticked, or request the erasure of those that were."""
    project_id = request.project.pk
    context: dict[str, object] = {"of": of, "name": text}
    error: ServiceError | None = None
    if request.method == "POST":
        names = request.POST.getlist("session")[: erasure.MAX_OPEN]
        try:
            _confirm(request, len({*names}))
            found = erasure.request_erasures(project_id, names, actor_of(request))
        except ServiceError as problem:
            error = problem
        else:
            count = sum(row is not None for row in found.values())
            messages.success(
                request,
                f"{count} erasure{'' if count == 1 else 's'} requested. A worker starts within a second.",
            )
            return redirect("console:erasures", request.project.slug)
    try:
        context |= _with_words(request, text) if of == _CONTENTS else _with_metadata(request, text)
    except FilterError as problem:
        context["search_error"] = problem.detail
    except BadCursor:
        raise Http404 from None
    return _render(request, context, error)


def _with_words(request: ProjectRequest, words: str) -> dict[str, object]:
    """Find the sessions that contain some words."""
    cursor = request.GET.get("cursor", "")
    project_id = request.project.pk
    results = search(project_id, words, cursor, erasure.MAX_OPEN, SEARCH_SECONDS, is_by_session=True)
    if "cursor" not in request.GET:
        record_search(project_id, actor_of(request), len(results.items))
    return {
        "results": results,
        "sessions": [(hit.session, hit.excerpt) for hit in results.items],
        "next_cursor": results.next_cursor,
    }


def _with_metadata(request: ProjectRequest, text: str) -> dict[str, object]:
    """Find the newest sessions with a value of metadata, as in `customer=acme`."""
    key, equals, value = text.strip().partition("=")
    if not (key and equals and value):
        raise FilterError("Write a key and its value, as in customer=acme.")
    rows = Session.objects.filter(project_id=request.project.pk, metadata__contains={key: value})
    names = [*rows.order_by("-pk").values_list("external_id", flat=True)[: erasure.MAX_OPEN + 1]]
    shown = [(name, text.strip()) for name in names[: erasure.MAX_OPEN]]
    return {"sessions": shown, "has_more": len(names) > len(shown)}


def _render(
    request: ProjectRequest, context: dict[str, object], error: ServiceError | None = None
) -> HttpResponse:
    rows = [*Erasure.objects.filter(project_id=request.project.pk).order_by("-pk")[:MAX_SHOWN]]
    context |= {
        "error": error,
        "choices": (
            *ErasureOf.choices,
            (_CONTENTS, "Customer, by words in calls"),
            (_METADATA, "Customer, by metadata"),
        ),
        "rows": [(row, _removed(row)) for row in rows],
        "is_waiting": any(row.state == "waiting" for row in rows),
    }
    return render(request, "projects/erasures.html", context, status=error.status if error else 200)


def _removed(row: Erasure) -> str:
    """Return what an erasure has removed, as in "1 session, 120 events"."""
    counts = removed(row).items()
    words = ((count, _WORDS.get(kind) or kind.replace("_", " ")) for kind, count in counts)
    return ", ".join(f"{count:,} {_singular(kind) if count == 1 else kind}" for count, kind in words)


def _singular(kind: str) -> str:
    return f"{kind.removesuffix('ies')}y" if kind.endswith("ies") else kind.removesuffix("s")
