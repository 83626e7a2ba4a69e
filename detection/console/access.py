"""Access to the pages of a project: a signed-in member with the required role.

Another user's project is not found (404) rather than forbidden (403).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, cast

import structlog
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import redirect_to_login
from django.db.models import F, Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from detection.console import kept_forms
from detection.console.single_submission import once
from detection.models import Membership, Project, Role, Session
from detection.services.accounts import second_factor
from detection.services.audit import Actor
from detection.services.projects import visits
from detection.web.request_context import IdentifiedRequest

log = structlog.get_logger(__name__)
P = ParamSpec("P")
MAX_PROJECTS = 50
"""Projects of a person that are offered, and whose held calls are announced."""
LAST_PROJECT = "last_project"
"""The key of the session under which the slug of the project opened last is kept."""
MAX_COMPARED_PROJECTS = 20
"""Projects whose newest events are compared at a first sign-in; each costs a query by index."""


class ProjectRequest(IdentifiedRequest):
    """A request of a member inside a project; see `in_project`."""

    project: Project
    membership: Membership


def in_project(
    role: str = Role.VIEWER, *, write_role: str = ""
) -> Callable[
    [Callable[Concatenate[ProjectRequest, P], HttpResponseBase]],
    Callable[Concatenate[HttpRequest, str, P], HttpResponseBase],
]:
    """Wrap a view of one project; it gets the request with `project` and `membership` on it.

    Parameters
    ----------
    role
        The lowest role that may see the page.
    write_role
        The lowest role that may post to the page; empty means `role`.
    """

    def decorate(
        view: Callable[Concatenate[ProjectRequest, P], HttpResponseBase],
    ) -> Callable[Concatenate[HttpRequest, str, P], HttpResponseBase]:
        @wraps(view)
        def wrapped(
            request: HttpRequest, project: str, *args: P.args, **kwargs: P.kwargs
        ) -> HttpResponseBase:
            if not request.user.is_authenticated:
                if request.method == "POST" or request.headers.get("HX-Request"):
                    return kept_forms.sign_in_needed(cast("IdentifiedRequest", request))
                return redirect_to_login(request.get_full_path(), reverse("console:sign_in"))
            membership = (
                Membership.objects.select_related("project")
                .filter(user_id=request.user.pk, project__slug=project)
                .first()
            )
            if membership is None:
                log.warning(
                    "access_denied",
                    username=request.user.get_username(),
                    project=project[:64],
                    path=request.path[:200],
                )
                raise Http404
            if lacks_second_factor(request, membership.project):
                step = second_factor.next_step(membership.user_id)
                messages.error(request, f"This project requires a second factor. {step}")
                if request.headers.get("HX-Request"):  # not swapped into a part of the page
                    url = reverse("console:second_factor")
                    return HttpResponse(status=204, headers={"HX-Redirect": url})
                return redirect("console:second_factor")
            inside = cast("ProjectRequest", request)
            inside.project, inside.membership = membership.project, membership
            needed = (write_role or role) if request.method == "POST" else role
            if not membership.allows(needed):
                return missing_role(inside, needed)
            if request.method == "POST":
                return once(inside, lambda: view(inside, *args, **kwargs))
            if _is_opened(request):
                visits.note_visit(membership)
            return view(inside, *args, **kwargs)

        return cast("Callable[Concatenate[HttpRequest, str, P], HttpResponseBase]", wrapped)

    return decorate


def _is_opened(request: HttpRequest) -> bool:
    """Return whether a person opens a page, in contrast to a script that keeps an open one current."""
    destination = request.headers.get("Sec-Fetch-Dest", "document")
    return destination == "document" and not request.headers.get("HX-Request")


def next_page(request: HttpRequest, default: str) -> str:
    """Return the address that a form wants shown next, if it is one of this site."""
    wanted = request.POST.get("next", "")
    return wanted if url_has_allowed_host_and_scheme(wanted, {request.get_host()}) else default


def own_page(view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Wrap a page of the person, such as Account; it is shown inside the project opened last.

    So the navigation stays, and held calls are announced there too. Without a project that the person may see now, the
    page stands alone.
    """

    @wraps(view)
    @login_required
    def wrapped(request: HttpRequest) -> HttpResponseBase:
        membership = announcing(request)
        if membership:
            inside = cast("ProjectRequest", request)
            inside.project, inside.membership = membership.project, membership
        return view(request)

    return wrapped


def announcing(request: HttpRequest) -> Membership | None:
    """Return the membership by which a page that belongs to no project announces held calls."""
    found = last_opened(request)
    if found is None or found.project.archived_at or lacks_second_factor(request, found.project):
        return None
    return found


def memberships(request: HttpRequest, current: int) -> list[Membership]:
    """Return the person's memberships in the current project and in those that are not archived, by name.

    One query per request.
    """
    if not hasattr(request, "memberships"):
        rows = (
            Membership.objects.filter(user_id=request.user.pk or 0)
            .filter(Q(project__archived_at=None) | Q(project_id=current))
            .select_related("project")
            .order_by("project__name")
        )
        request.memberships = [*rows[:MAX_PROJECTS]]  # type: ignore[attr-defined]
    return cast("list[Membership]", request.memberships)  # type: ignore[attr-defined]


def last_opened(request: HttpRequest) -> Membership | None:
    """Return the membership in the project opened last, or else in that with the newest event; archived ones last."""
    rows = (
        Membership.objects.filter(user_id=request.user.pk or 0)
        .select_related("project")
        .order_by(F("project__archived_at").asc(nulls_first=True), "project__name")
    )
    last = request.session.get(LAST_PROJECT)
    if last and (found := rows.filter(project__slug=last).first()) is not None:
        return found
    newest, found = None, rows.first()
    for one in rows.filter(project__archived_at=None)[:MAX_COMPARED_PROJECTS]:
        times = Session.objects.filter(project_id=one.project_id).order_by("-last_event_at")
        at = times.values_list("last_event_at", flat=True).first()
        if at is not None and (newest is None or at > newest):
            newest, found = at, one
    return found


def lacks_second_factor(request: HttpRequest, project: Project) -> bool:
    """Return whether a project requires a second factor that the person has not entered in this browser."""
    is_required = settings.REQUIRE_SECOND_FACTOR or project.requires_second_factor
    return is_required and not request.session.get(second_factor.SESSION_KEY)


def missing_role(request: ProjectRequest, role: str) -> HttpResponse:
    """Return the page that names the required role and who can grant it, and log the denial."""
    log.warning(
        "access_denied",
        username=request.user.get_username(),
        project=request.project.slug,
        role=request.membership.role,
        needed=str(role),
        method=request.method,
        path=request.path[:200],
    )
    admins = Membership.objects.filter(project=request.project, role=Role.ADMIN).select_related("user")[:5]
    context = {"needed": Role(role).name.lower(), "admins": [row.user.get_username() for row in admins]}
    return render(request, "console/no_permission.html", context, status=403)


def actor_of(request: HttpRequest) -> Actor:
    """Return the actor of a request for the audit."""
    return Actor(
        request.user.get_username(),
        request.user.pk,
        getattr(request, "client_address", None) or request.META.get("REMOTE_ADDR") or None,
        getattr(request, "request_id", ""),
    )
