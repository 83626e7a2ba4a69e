"""The Members page: roles, invitations by link, and leaving the project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from detection.console.access import ProjectRequest, actor_of, in_project, missing_role
from detection.console.single_submission import shows_secret
from detection.models import Membership, Role
from detection.services.errors import ServiceError
from detection.services.projects import invitations, members

MAX_SHOWN = 500
LIFETIMES = (("1", "In a day"), ("7", "In a week"), ("30", "In 30 days"))


@never_cache
@in_project()
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """List members and open invitations, or carry out one of the forms."""
    if request.method != "POST":
        return _page(request)
    known = ACTIONS.get(request.POST.get("action", ""))
    if known is None:
        raise Http404
    role, carry_out = known
    if not request.membership.allows(role):
        return missing_role(request, role)
    try:
        shown = carry_out(request)
    except ServiceError as error:
        return _page(request, error=error, given=request.POST)
    return shown or redirect("console:members", request.project.slug)


def _page(request: ProjectRequest, **more: Any) -> HttpResponse:
    rows = Membership.objects.filter(project=request.project).select_related("user")
    context = {
        "members": rows.order_by("user__username")[:MAX_SHOWN],
        "roles": Role.choices,
        "lifetimes": LIFETIMES,
        "max_recipient": invitations.MAX_RECIPIENT_CHARACTERS,
        **more,
    }
    if request.membership.allows(Role.ADMIN):
        context["invitations"] = invitations.open_invitations(request.project.pk).select_related("created_by")
    return render(
        request, "projects/members.html", context, status=more["error"].status if "error" in more else 200
    )


def _user_id(request: ProjectRequest) -> int:
    text = request.POST.get("member", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _change_role(request: ProjectRequest) -> None:
    role = request.POST.get("role", "")
    row = members.change_role(request.project.pk, _user_id(request), role, actor_of(request))
    messages.success(request, f"{row.user.get_username()} is now {Role(row.role).name.lower()}.")


def _remove(request: ProjectRequest) -> None:
    row = members.remove_member(request.project.pk, _user_id(request), actor_of(request))
    messages.success(request, f"{row.user.get_username()} removed from the project.")


def _leave(request: ProjectRequest) -> HttpResponse:
    members.remove_member(request.project.pk, request.user.pk or 0, actor_of(request))
    messages.success(request, f"You left {request.project.name}.")
    return redirect("console:home")


def _invite(request: ProjectRequest) -> HttpResponse:
    days = request.POST.get("days", "")
    row, token = invitations.create_invitation(
        request.project.pk,
        actor_of(request),
        role=request.POST.get("role", ""),
        days=int(days) if days in dict(LIFETIMES) else 0,
        recipient=request.POST.get("recipient", ""),
    )
    shows_secret(request)
    link = settings.PUBLIC_URL.rstrip("/") + reverse("console:invitation", args=[token])
    return _page(request, made=row, link=link)


def _revoke(request: ProjectRequest) -> None:
    invitations.revoke_invitation(request.project.pk, request.POST.get("invitation", ""), actor_of(request))
    messages.success(request, "Invitation revoked. Its link no longer works.")


ACTIONS: dict[str, tuple[Role, Callable[[ProjectRequest], HttpResponse | None]]] = {
    "role": (Role.ADMIN, _change_role),
    "remove": (Role.ADMIN, _remove),
    "leave": (Role.VIEWER, _leave),
    "invite": (Role.ADMIN, _invite),
    "revoke": (Role.ADMIN, _revoke),
}
