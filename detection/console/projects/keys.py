"""The Keys page: list, create and revoke API keys."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from detection.console.access import ProjectRequest, actor_of, in_project
from detection.console.alerting.alert_pages import words_of
from detection.console.single_submission import shows_secret
from detection.models import ApiKey, KeyScope, Role
from detection.selectors.integrations import heard_key
from detection.services import keys as service
from detection.services import tags
from detection.services.errors import ServiceError

LIFETIMES = (("", "Never"), ("30", "In 30 days"), ("90", "In 90 days"), ("365", "In a year"))


@never_cache
@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """List the keys, or create one. Only the response to the form holds the token, so a reload does not show it."""
    token, made = "", None
    if request.method == "POST":
        days = request.POST.get("lifetime", "")
        expires = timezone.now() + timedelta(days=int(days)) if days in dict(LIFETIMES) and days else None
        name = request.POST.get("name", "").strip()
        try:
            made, token = service.create_key(
                request.project,
                name or "unnamed",
                actor_of(request),
                scopes=request.POST.getlist("scopes"),
                expires_at=expires,
            )
            shows_secret(request)
        except ServiceError as error:
            messages.error(request, error.detail)
    now = timezone.now()
    rows = ApiKey.objects.filter(project=request.project).select_related("created_by")[:200]
    context = {
        "keys": [(key, _state(key, now), heard_key(key)) for key in rows],
        "token": token,
        "made": made,
        "scopes": KeyScope.choices,
        "lifetimes": LIFETIMES,
    }
    return render(request, "projects/keys.html", context)


def _state(key: ApiKey, now: datetime) -> tuple[str, str]:
    if key.revoked_at:
        return "idle", "Revoked"
    if key.expires_at and key.expires_at <= now:
        return "warn", "Expired"
    return ("ok", "In use") if key.last_used_at else ("plain", "Not used yet")


@in_project(Role.ADMIN)
@require_POST
def revoke(request: ProjectRequest) -> HttpResponse:
    """Revoke a key; requests with it are rejected within a second."""
    try:
        key = service.revoke_key(request.project, request.POST.get("key", ""), actor_of(request))
        messages.success(request, f"Key {key.name} revoked. It stops working within a second.")
    except ServiceError as error:
        messages.error(request, error.detail)
    return redirect("console:keys", request.project.slug)


@in_project(Role.ADMIN)
@require_POST
def tag(request: ProjectRequest) -> HttpResponse:
    """Replace the tags of a key."""
    try:
        given = words_of(request.POST, "tags")
        key = tags.set_key_tags(request.project.pk, request.POST.get("key", ""), given, actor_of(request))
        shown = ", ".join(key.tags) or "none"
        messages.success(request, f"Tags of {key.name}: {shown}. They take effect on the next call.")
    except ServiceError as error:
        messages.error(request, error.detail)
    return redirect("console:keys", request.project.slug)
