"""The Gateway page: backends, their tokens, and a test of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.conf import settings
from django.contrib import messages
from django.db.models import Prefetch
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from detection.console import edits
from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.single_submission import shows_secret
from detection.models import BackendKind, GatewayToken, Role
from detection.selectors.gateway import gateway_url, list_backends
from detection.services.errors import ServiceError
from detection.services.gateway import backends as service
from detection.services.versions import ChangedMeanwhile


@never_cache
@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """List the backends."""
    return _page(request)


def _page(request: ProjectRequest, **more: Any) -> HttpResponse:
    active = GatewayToken.objects.filter(revoked_at=None).order_by("-id")
    rows = list_backends(request.project.pk).prefetch_related(Prefetch("tokens", active, "active_tokens"))
    context = {
        "backends": [(row, gateway_url(row.name), service.backend_version(row)) for row in rows],
        "kinds": BackendKind.choices,
        "upstreams": settings.GATEWAY_UPSTREAMS,
        "credentials": sorted(settings.GATEWAY_CREDENTIALS),
        **more,
    }
    status = 409 if "edited" in more else 200
    return render(request, "gateway/page.html", context, status=status)


@never_cache
@in_project(Role.ADMIN)
@require_POST
def act(request: ProjectRequest) -> HttpResponse:
    """Carry out one of the forms. Only the response to the form holds a new token, so a reload does not show it."""
    carry_out = _ACTIONS.get(request.POST.get("action", ""))
    if carry_out is None:
        raise Http404
    try:
        shown = carry_out(request)
    except ChangedMeanwhile as error:
        entered = _switches(request)
        name = error.current["name"]
        if not entered:
            messages.error(request, f"Backend {name} was changed in the meantime. It was not deleted.")
            return _page(request, edited={})
        messages.error(request, f"Backend {name} was changed in the meantime. Nothing was saved.")
        return _page(request, edited={"id": _target(request)[1], **entered, **edits.conflict(error, entered)})
    except ServiceError as error:
        messages.error(request, error.detail)
        return _page(request, given=request.POST)
    return _page(request, **shown) if shown else redirect("console:gateway", request.project.slug)


def _create(request: ProjectRequest) -> dict[str, Any]:
    names = ("name", "kind", "base_url", "credential")
    values: dict[str, Any] = {name: request.POST.get(name, "").strip() for name in names}
    values |= {name: request.POST.get(name) == "yes" for name in ("fails_closed", "requests_usage")}
    row = service.create_backend(request.project.pk, actor_of(request), **values)
    messages.success(request, f"Backend {row.name} created.")
    return {}


def _switches(request: ProjectRequest) -> dict[str, Any]:
    return {name: request.POST[name] == "yes" for name in _SWITCHES if name in request.POST}


def _switch(request: ProjectRequest) -> dict[str, Any]:
    row = service.update_backend(*_target(request), version=request.POST.get("version"), **_switches(request))
    messages.success(request, f"Backend {row.name} saved. It takes effect within a second.")
    return {}


def _test(request: ProjectRequest) -> dict[str, Any]:
    result = service.test_backend(*_target(request))
    (messages.success if result.is_success else messages.error)(request, result.detail)
    return {}


def _delete(request: ProjectRequest) -> dict[str, Any]:
    service.delete_backend(*_target(request), version=request.POST.get("version"))
    messages.success(request, "Backend deleted.")
    return {}


def _create_token(request: ProjectRequest) -> dict[str, Any]:
    row, token = service.create_token(*_target(request), name=request.POST.get("token_name", ""))
    shows_secret(request, reverse("console:gateway", args=[request.project.slug]))
    return {"made": row, "token_url": gateway_url(row.backend.name, token)}


def _revoke_token(request: ProjectRequest) -> dict[str, Any]:
    project_id, public_id, actor = _target(request)
    row = service.revoke_token(project_id, public_id, request.POST.get("token", ""), actor)
    messages.success(request, f"Token {row.name} revoked. It stops working within a second.")
    return {}


def _target(request: ProjectRequest) -> tuple[int, str, Any]:
    return request.project.pk, request.POST.get("id", "")[:40], actor_of(request)


_SWITCHES: Final = ("is_enabled", "fails_closed", "requests_usage")
_ACTIONS: Final[dict[str, Callable[[ProjectRequest], dict[str, Any]]]] = {
    "create": _create,
    "switch": _switch,
    "test": _test,
    "delete": _delete,
    "create_token": _create_token,
    "revoke_token": _revoke_token,
}
