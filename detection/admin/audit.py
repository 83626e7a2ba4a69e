"""The audit, searchable and read-only; the database rejects changes as well."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from detection.admin.base import ProjectAdmin, ProjectFilter, ReadOnlyMixin
from detection.models import AuditEntry

AREAS = (
    "account", "approval", "backend", "demo", "destination", "import", "incident", "invitation", "judge", "key",
    "member", "message_template", "notification", "operator", "pattern", "policy", "price", "project", "retention",
    "route", "session", "silence", "suggestion", "view", "what_if",
)  # fmt: skip


class AreaFilter(admin.SimpleListFilter):
    """Filter by the first part of the action."""

    title, parameter_name = "area", "area"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the first parts of all actions."""
        return [(area, area) for area in AREAS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        """Keep the actions of the chosen area."""
        area = self.value()
        return queryset.filter(action__startswith=f"{area}.") if area in AREAS else queryset


@admin.register(AuditEntry)
class AuditPage(ReadOnlyMixin, ProjectAdmin):
    """Audit entries."""

    list_display = ("at", "actor", "action", "subject", "project", "address")
    list_filter = (AreaFilter, "at", ("project", ProjectFilter))
    search_fields = ("actor", "action__startswith", "subject", "request_id__exact")
    search_help_text = "Actor, object, action or request id"
    list_select_related = ("project",)
    # The primary key has the order of writing without sorting the whole table.
    ordering = ("-id",)
    fields = ("at", "actor", "action", "subject", "project", "before", "after", "address", "request_id")
