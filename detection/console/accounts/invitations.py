"""The page behind an invitation link: join with an existing account, or create one."""

from __future__ import annotations

import structlog
from django.contrib import messages
from django.contrib.auth import login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from detection.console.access import actor_of
from detection.console.accounts.sign_in import MAX_NAME_CHARACTERS, MAX_PASSWORD_CHARACTERS
from detection.models import Membership
from detection.services.errors import NotFound, ServiceError
from detection.services.projects import invitations

log = structlog.get_logger(__name__)


@sensitive_post_parameters("password", "repeated")
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest, token: str) -> HttpResponse:
    """Show the invitation, or accept it.

    Opening the link changes nothing, because programs that preview links open it, too.
    """
    try:
        invitation = invitations.find_invitation(token)
    except NotFound as invalid:
        return _invalid(request, invalid)
    error: ServiceError | None = None
    if request.method == "POST":
        try:
            if request.user.is_authenticated:
                invitations.accept_invitation(token, actor_of(request))
            else:
                _create_account(request, token)
        except NotFound as gone:
            return _invalid(request, gone)
        except ServiceError as problem:
            error = problem
        else:
            messages.success(request, f"Welcome to {invitation.project.name}.")
            return redirect("console:project", invitation.project.slug)
    here = urlencode({"next": request.path})
    context = {
        "invitation": invitation,
        "is_member": Membership.objects.filter(
            project=invitation.project, user_id=request.user.pk or 0
        ).exists(),
        "username": request.POST.get("username", "")[:MAX_NAME_CHARACTERS],
        "error": error,
        "sign_in_url": f"{reverse('console:sign_in')}?{here}",
        "max_name": MAX_NAME_CHARACTERS,
    }
    return render(request, "projects/invitation.html", context, status=error.status if error else 200)


def _invalid(request: HttpRequest, error: NotFound) -> HttpResponse:
    return render(request, "projects/invitation.html", {"problem": error.detail}, status=404)


def _create_account(request: HttpRequest, token: str) -> None:
    user = invitations.create_account(
        token,
        username=request.POST.get("username", "")[: MAX_NAME_CHARACTERS + 1],
        password=request.POST.get("password", "")[:MAX_PASSWORD_CHARACTERS],
        address=getattr(request, "client_address", None) or request.META.get("REMOTE_ADDR") or None,
        request_id=getattr(request, "request_id", ""),
    )
    login(request, user)
    log.info("signed_in", username=user.get_username())
