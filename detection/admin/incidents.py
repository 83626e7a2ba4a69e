"""Incidents, searchable, with the same actions as in the console; fields are read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from detection.admin.base import BaseInline, ProjectAdmin, ProjectFilter, ReadOnlyMixin, actor_of
from detection.models import Incident, IncidentActivity
from detection.services.incidents import triage

MAX_AT_ONCE = 200


class ActivityInline(ReadOnlyMixin, BaseInline):
    """Activity of an incident."""

    model = IncidentActivity
    extra = 0
    fields = ("at", "actor", "action", "note")


@admin.register(Incident)
class IncidentPage(ReadOnlyMixin, ProjectAdmin):
    """Incidents."""

    list_display = (
        "public_id", "status", "kind", "tool", "count_of_limit", "decision", "session_name", "agent", "model", "label",
        "last_seen_at", "page",
    )  # fmt: skip
    list_filter = ("status", "kind", "decision", "label", ("project", ProjectFilter))
    search_fields = ("public_id", "tool", "session_name__startswith", "agent__startswith")
    list_select_related = ("project",)
    ordering = ("-last_seen_at", "-id")
    inlines = (ActivityInline,)
    actions = ("acknowledge", "resolve", "reopen", "not_a_loop")
    fields = (
        "public_id", "project", "status", "label", "kind", "tool", "count", "limit", "window_seconds", "confidence",
        "decision", "rung", "detections", "calls_blocked", "calls_in_loop", "cost_usd", "session_name", "agent",
        "backend", "model", "opened_at", "last_seen_at", "ended_at", "labelled_at", "recovered", "policy",
    )  # fmt: skip

    @admin.display(description="count", ordering="count")
    def count_of_limit(self, incident: Incident) -> str:
        """Show the count against the limit."""
        return f"{incident.count:,} of {incident.limit:,}"

    @admin.display(description="console")
    def page(self, incident: Incident) -> str:
        """Link to the incident's page."""
        return format_html(
            '<a href="{}">open</a>',
            reverse("console:incident", args=[incident.project.slug, incident.public_id]),
        )

    def _bulk(self, request: HttpRequest, rows: QuerySet[Incident], action: str, **arguments: Any) -> None:
        by_project: dict[int, list[str]] = {}
        for project_id, public_id in rows.values_list("project_id", "public_id")[:MAX_AT_ONCE]:
            by_project.setdefault(project_id, []).append(public_id)
        done = 0
        for project_id, ids in by_project.items():
            outcome = triage.bulk(project_id, ids, action, actor_of(request), **arguments)
            done += sum(code == "done" for code in outcome.values())
        messages.success(request, f"{done} incident{'' if done == 1 else 's'} changed.")

    @admin.action(description="Acknowledge", permissions=["view"])
    def acknowledge(self, request: HttpRequest, rows: QuerySet[Incident]) -> None:
        """Acknowledge the selected incidents."""
        self._bulk(request, rows, "acknowledge")

    @admin.action(description="Resolve", permissions=["view"])
    def resolve(self, request: HttpRequest, rows: QuerySet[Incident]) -> None:
        """Resolve the selected incidents."""
        self._bulk(request, rows, "resolve")

    @admin.action(description="Reopen", permissions=["view"])
    def reopen(self, request: HttpRequest, rows: QuerySet[Incident]) -> None:
        """Reopen the selected incidents."""
        self._bulk(request, rows, "reopen")

    @admin.action(description="Not a loop", permissions=["view"])
    def not_a_loop(self, request: HttpRequest, rows: QuerySet[Incident]) -> None:
        """Label the selected incidents as false alarms."""
        self._bulk(request, rows, "label", value="false_alarm")
