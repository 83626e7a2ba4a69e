"""The audit: who changed what, to be searched. Nobody changes it here, and the database refuses it too."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from detection.admin.base import ProjectAdmin, ProjectFilter, ReadOnlyMixin
from detection.models import AuditEntry

AREAS = (
    "delivery", "demo", "destination", "incident", "key", "member", "policy", "project", "approval", "retention", "route",
    "session", "silence", "text",
)  # fmt: skip


class AreaFilter(admin.SimpleListFilter):
    """By the first word of the action."""

    title, parameter_name = "area", "area"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Every word that an action begins with."""
        return [(area, area) for area in AREAS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        """Keep the actions of the chosen area."""
        area = self.value()
        return queryset.filter(action__startswith=f"{area}.") if area in AREAS else queryset


@admin.register(AuditEntry)
class AuditPage(ReadOnlyMixin, ProjectAdmin):
    """Who changed what."""

    list_display = ("at", "actor", "action", "subject", "project", "address")
    list_filter = (AreaFilter, "at", ("project", ProjectFilter))
    search_fields = ("actor", "action__startswith", "subject", "request_id__exact")
    search_help_text = "Who, to what, an action, or a request's id"
    list_select_related = ("project",)
    # The order of writing, which the primary key has without sorting the whole table.
    ordering = ("-id",)
    fields = ("at", "actor", "action", "subject", "project", "before", "after", "address", "request_id")
