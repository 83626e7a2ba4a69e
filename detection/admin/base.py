"""What all pages of the admin share: the styled look where it is installed, bounded counts, and the way to the services.

The admin is the second door to the same rows as the console. Whatever has a service is changed through it, so that
validation, audit and news to open pages are the same by both doors.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.views import redirect_to_login
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.functional import cached_property

from detection.models import Membership, Project, Role
from detection.services.audit import Actor

try:
    from unfold.admin import ModelAdmin as BaseAdmin
    from unfold.admin import TabularInline as BaseInline
except ImportError:  # the styled look is an addition, not a need
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
    "refused",
]

COUNT_LIMIT = 10_000


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts no further than `COUNT_LIMIT`: on a large table the count alone would be nearly all of the time."""

    @cached_property
    def count(self) -> int:
        """How many rows there are, at most `COUNT_LIMIT`."""
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return len(rows.order_by().values_list("pk")[:COUNT_LIMIT])
        return len(rows)


def actor_of(request: HttpRequest) -> Actor:
    """Return the person behind a request as the audit names them."""
    address = getattr(request, "client_address", None) or request.META.get("REMOTE_ADDR") or None
    return Actor(request.user.get_username(), request.user.pk, address, getattr(request, "request_id", ""))


def refused(request: HttpRequest, error: Exception) -> None:
    """Say on the page why a service refused."""
    messages.error(request, str(error))


class ProjectFilter(admin.RelatedFieldListFilter):
    """By project; names only those that this person administers."""

    def field_choices(
        self, field: Any, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, Any]]:
        """Return the projects to choose from."""
        projects = Project.objects.order_by("name")
        if not request.user.is_superuser:
            projects = projects.filter(pk__in=administered(request))
        return [(str(project.pk), project.name) for project in projects.only("name")]


class ProjectAdmin(BaseAdmin):
    """An admin page of rows that belong to projects; staff who are no superuser see the projects they administer."""

    project_path = "project"
    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 200

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows of the projects that this person administers."""
        rows: QuerySet[Any] = super().get_queryset(request)
        if request.user.is_superuser:
            return rows
        return rows.filter(**{f"{self.project_path}__in": administered(request)})

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer only projects that this person administers."""
        if db_field.name == "project" and not request.user.is_superuser:
            kwargs["queryset"] = db_field.remote_field.model.objects.filter(pk__in=administered(request))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)


def administered(request: HttpRequest) -> QuerySet[Membership, int]:
    """Return the ids of the projects in which this person is admin."""
    rows = Membership.objects.filter(user_id=request.user.pk or 0, role=Role.ADMIN)
    return rows.values_list("project_id", flat=True)


class ReadOnlyMixin:
    """For rows that are looked at here and changed elsewhere, if at all."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody adds."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody changes."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes."""
        return False


def sign_in(request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
    """Send to the console's sign-in, which slows guessing down; there is no second door to passwords."""
    if request.user.is_authenticated:
        messages.error(request, "The administration is for staff accounts.")
        return redirect("console:home")
    return redirect_to_login(request.GET.get("next") or reverse("admin:index"), reverse("console:sign_in"))


admin.site.login = sign_in  # type: ignore[method-assign]
admin.site.site_header = admin.site.site_title = "LoopGuard"
admin.site.index_title = "Administration"
