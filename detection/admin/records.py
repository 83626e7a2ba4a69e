"""Records that the console and the API write, to look at: lists, search, filters and every field, all read-only.

Addresses and signing secrets of destinations are not among the fields; `shown_address` is what people see.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from detection.admin.base import BaseInline, ProjectAdmin, ProjectFilter, ReadOnlyMixin
from detection.models import (
    AlertDestination,
    AlertRoute,
    Approval,
    AuditEntry,
    DeliveryAttempt,
    GatewayBackend,
    GatewayToken,
    Incident,
    IncidentActivity,
    JudgeCall,
    ModelPrice,
    Notification,
    Session,
)
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.record_rows import ApprovalRow, AuditRow, NotificationRow
from detection.selectors.row_fields import row_fields
from detection.selectors.session_rows import SessionRow
from detection.services.gateway.prices import AMOUNTS

AREAS = (
    "account", "agent", "agent_message", "approval", "backend", "containment", "contents", "demo",
    "destination", "import", "incident", "invitation", "judge", "key", "loop", "member", "message_template",
    "notification", "operator", "policy", "price", "project", "report", "retention", "route", "session",
    "silence", "suggestion", "view", "what_if",
)  # fmt: skip


class AreaFilter(admin.SimpleListFilter):
    """Filter the audit by the first part of the action."""

    title, parameter_name = "area", "area"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the first parts of all actions."""
        return [(area, area) for area in AREAS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        """Keep the actions of the chosen area."""
        area = self.value()
        return queryset.filter(action__startswith=f"{area}.") if area in AREAS else queryset


class RecordPage(ReadOnlyMixin, ProjectAdmin):
    """A kind of records. What is configured has the order of its model, which `()` stands for."""

    # The primary key has the order of writing without sorting the whole table.
    ordering = ("-id",)
    list_select_related = ("project",)

    @admin.display(description="console")
    def page(self, row: Any) -> str:
        """Link to the record in the console."""
        slug, kind = row.project.slug, row._meta.model_name
        if kind == "session":  # its name may end in anything
            address = reverse("console:session_by_name", args=[slug], query={"name": row.external_id})
        else:
            address = reverse(f"console:{kind}", args=[slug, row.public_id])
        return format_html('<a href="{}">open</a>', address)


def rows_of(model: type[Model], *fields: str, fk_name: str | None = None) -> type[Any]:
    """Return an inline with fields of the rows that belong to a record."""
    attributes = {"model": model, "fk_name": fk_name, "extra": 0, "fields": fields, "readonly_fields": fields}
    return type(f"{model.__name__}Rows", (ReadOnlyMixin, BaseInline), attributes)


def columns_of(model: type[Model], row: Any, *more: str) -> tuple[str, ...]:
    """Return the project, the columns of a model that its rows in lists are read from, and some more."""
    known = {field.name for field in model._meta.fields} - {"id", "project"}
    read = dict.fromkeys(field.column.partition("__")[0] for field in row_fields(row))
    return ("project", *(name for name in read if name in known), *more)


_PROJECT = ("project", ProjectFilter)
# fmt: off
admin.site.register(
    Incident, RecordPage,
    list_display=(
        "public_id", "status", "kind", "tool", "count", "limit", "decision", "session_name", "agent", "model", "label",
        "last_seen_at", "page",
    ),
    list_filter=("status", "kind", "decision", "label", _PROJECT),
    search_fields=("public_id", "tool", "session_name__startswith", "agent__startswith"),
    ordering=("-last_seen_at", "-id"),
    inlines=(rows_of(IncidentActivity, "at", "actor", "action", "note", fk_name="incident"),),
    fields=columns_of(Incident, IncidentRow, "policy"),
)
admin.site.register(
    Session, RecordPage,
    list_display=(
        "external_id", "project", "state", "agent", "backend", "model", "call_count", "last_event_at", "page",
    ),
    list_filter=("state", "is_demo", _PROJECT),
    search_fields=("external_id__startswith", "agent__startswith"),
    ordering=("-last_event_at", "-id"),
    fields=columns_of(Session, SessionRow),
)
admin.site.register(
    Approval, RecordPage,
    list_display=(
        "public_id", "project", "state", "decider", "session__external_id", "agent", "tool", "choice", "decided_by",
        "requested_at",
    ),
    list_filter=("state", "decider", "choice", "kind", _PROJECT),
    list_select_related=("project", "session"),
    search_fields=(
        "public_id__exact", "session__external_id__startswith", "agent__startswith", "tool", "decided_by",
    ),
    fields=columns_of(Approval, ApprovalRow, "window_seconds", "unit"),
)
admin.site.register(
    JudgeCall, RecordPage,
    list_display=(
        "at", "project", "outcome", "error", "was_sent", "model", "rounds_granted", "latency_ms", "cost_usd", "label",
        "incident",
    ),
    list_filter=("outcome", "label", "was_sent", "at", _PROJECT),
    list_select_related=("project", "incident"),
    search_fields=("incident__public_id__exact", "approval__public_id__exact", "error", "model", "host"),
    fields=(
        "at", "project", "incident", "approval", "outcome", "error", "was_sent", "host", "model", "request",
        "response", "reason", "guidance", "rounds_proposed", "rounds_granted", "policy_version", "latency_ms",
        "input_tokens", "output_tokens", "cost_usd", "label", "labelled_by", "labelled_at",
    ),
)
admin.site.register(
    AlertDestination, RecordPage,
    list_display=(
        "name", "project", "kind", "shown_address", "is_enabled", "failures_in_row", "paused_until", "last_success_at",
    ),
    list_filter=("kind", "is_enabled", _PROJECT),
    search_fields=("public_id__exact", "name", "shown_address"),
    ordering=(),
    fields=(
        "public_id", "project", "name", "kind", "shown_address", "is_enabled", "failures_in_row", "paused_until",
        "last_success_at", "last_failure_at", "last_problem", "created_at",
    ),
)
admin.site.register(
    AlertRoute, RecordPage,
    list_display=(
        "name", "project", "position", "is_enabled", "continue_matching", "includes_demo", "group_wait_seconds",
    ),
    list_filter=("is_enabled", _PROJECT),
    search_fields=("public_id__exact", "name"),
    ordering=(),
    fields=(
        "public_id", "project", "name", "position", "is_enabled", "destination_names", "event_types", "kinds",
        "severities",
        "tools", "agents", "backends", "model_names", "tags", "continue_matching", "includes_demo", "group_by",
        "group_wait_seconds", "quiet_from", "quiet_until", "quiet_zone", "quiet_delays_critical",
        "repeat_interval_hours",
    ),
    readonly_fields=("destination_names",),
)
admin.site.register(
    Notification, RecordPage,
    list_display=(
        "public_id", "title", "destination", "project", "state", "attempt_count", "created_at", "due_at", "page",
    ),
    list_filter=("state", "is_test", _PROJECT),
    list_select_related=("project", "destination"),
    search_fields=("public_id__exact", "title", "route_name", "destination__name"),
    inlines=(rows_of(DeliveryAttempt, "number", "at", "duration_ms", "is_success", "status", "problem", "response"),),
    fields=columns_of(Notification, NotificationRow),
)
admin.site.register(
    GatewayBackend, RecordPage,
    list_display=("name", "project", "kind", "base_url", "credential", "fails_closed", "is_enabled"),
    list_filter=("kind", "is_enabled", _PROJECT),
    search_fields=("public_id__exact", "name", "base_url"),
    ordering=(),
    inlines=(rows_of(GatewayToken, "name", "public_id", "created_at", "revoked_at"),),
    fields=(
        "public_id", "project", "name", "kind", "base_url", "credential", "headers", "fails_closed", "requests_usage",
        "is_enabled", "created_at",
    ),
)
admin.site.register(
    ModelPrice, RecordPage,
    list_display=("model", "backend", "project", *AMOUNTS, "updated_at"),
    list_filter=(_PROJECT,),
    search_fields=("public_id__exact", "model", "backend"),
    ordering=(),
    fields=("public_id", "project", "backend", "model", *AMOUNTS, "updated_at"),
)
admin.site.register(
    AuditEntry, RecordPage,
    list_display=("at", "actor", "action", "subject", "project", "address"),
    list_filter=(AreaFilter, "at", _PROJECT),
    search_fields=("actor", "action__startswith", "subject", "request_id__exact"),
    search_help_text="Actor, object, action or request id",
    fields=columns_of(AuditEntry, AuditRow),
)
