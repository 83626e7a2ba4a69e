"""Base classes of the admin: the Unfold theme where it is installed, bounded counts, project permissions.

The admin changes rows through the same services as the console, so validation, audit and live updates are the same.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.views import redirect_to_login
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.functional import cached_property

from detection.models import Membership, Project, Role
from detection.services.accounts import second_factor
from detection.services.audit import Actor

try:
    from unfold.admin import ModelAdmin as BaseAdmin
    from unfold.admin import TabularInline as BaseInline
except ImportError:  # the theme is optional
    from django.contrib.admin import ModelAdmin as BaseAdmin
    from django.contrib.admin import TabularInline as BaseInline

__all__ = [
    "BaseAdmin",
    "BaseInline",
    "BoundedPaginator",
    "ProjectAdmin",
    "ProjectFilter",
    "ReadOnlyMixin",
    "actor_of",
]

COUNT_LIMIT = 10_000


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Paginator that counts at most `COUNT_LIMIT` rows; counting a large table would dominate the response time."""

    @cached_property
    def count(self) -> int:
        """Number of rows, at most `COUNT_LIMIT`."""
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return len(rows.order_by().values_list("pk")[:COUNT_LIMIT])
        return len(rows)


def actor_of(request: HttpRequest) -> Actor:
    """Return the actor of a request for the audit."""
    address = getattr(request, "client_address", None) or request.META.get("REMOTE_ADDR") or None
    return Actor(request.user.get_username(), request.user.pk, address, getattr(request, "request_id", ""))


class ProjectFilter(admin.RelatedFieldListFilter):
    """Filter by project; lists only the projects that the user administers."""

    def field_choices(
        self, field: Any, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, Any]]:
        """Return the projects to choose from."""
        projects = Project.objects.order_by("name")
        if not request.user.is_superuser:
            projects = projects.filter(pk__in=administered(request))
        return [(str(project.pk), project.name) for project in projects.only("name")]


class ProjectAdmin(BaseAdmin):
    """Base of admin pages for rows of projects; staff without superuser rights see the projects they administer."""

    project_path = "project"
    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 25
    list_max_show_all = 200

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows of the projects that the user administers."""
        rows: QuerySet[Any] = super().get_queryset(request)
        if request.user.is_superuser:
            return rows
        return rows.filter(**{f"{self.project_path}__in": administered(request)})

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer only projects that the user administers."""
        if db_field.name == "project" and not request.user.is_superuser:
            kwargs["queryset"] = db_field.remote_field.model.objects.filter(pk__in=administered(request))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


def administered(request: HttpRequest) -> QuerySet[Membership, int]:
    """Return the ids of the projects in which the user is admin."""
    rows = Membership.objects.filter(user_id=request.user.pk or 0, role=Role.ADMIN)
    return rows.values_list("project_id", flat=True)


class ReadOnlyMixin:
    """Makes a page read-only."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False


def has_permission(request: HttpRequest) -> bool:
    """Return whether the person is staff and has passed the second factor, if the administered projects require one."""
    user = request.user
    if not user.is_active or not getattr(user, "is_staff", False):
        return False
    return bool(request.session.get(second_factor.SESSION_KEY)) or not _requires_second_factor(request)


def _requires_second_factor(request: HttpRequest) -> bool:
    if settings.REQUIRE_SECOND_FACTOR:
        return True
    projects = Project.objects.filter(requires_second_factor=True)
    if not getattr(request.user, "is_superuser", False):
        projects = projects.filter(pk__in=administered(request))
    return projects.exists()


def sign_in(request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
    """Redirect to the sign-in page of the console, which throttles failed logins."""
    if request.user.is_authenticated:
        if getattr(request.user, "is_staff", False):
            step = second_factor.next_step(request.user.pk)
            messages.error(request, f"The administration requires a second factor. {step}")
            if request.headers.get("HX-Request"):  # not swapped into a part of the page
                url = reverse("console:second_factor")
                return HttpResponse(status=204, headers={"HX-Redirect": url})
            return redirect("console:second_factor")
        messages.error(request, "The administration requires a staff account.")
        return redirect("console:home")
    return redirect_to_login(request.GET.get("next") or reverse("admin:index"), reverse("console:sign_in"))


admin.site.has_permission = has_permission  # type: ignore[method-assign]
admin.site.login = sign_in  # type: ignore[method-assign]
admin.site.site_header = admin.site.site_title = "LoopGuard"
admin.site.index_title = "Administration"
