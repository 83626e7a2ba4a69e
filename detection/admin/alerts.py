"""Alert destinations, routes and notifications, read-only. They are changed and tested in the console.

Addresses and signing secrets are not shown; `shown_address` is the readable part of an address.
"""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html

from detection.admin.base import BaseInline, ProjectAdmin, ProjectFilter, ReadOnlyMixin
from detection.models import AlertAttempt, AlertDelivery, AlertDestination, AlertRoute


@admin.register(AlertDestination)
class DestinationPage(ReadOnlyMixin, ProjectAdmin):
    """Destinations of notifications."""

    list_display = (
        "name", "project", "kind", "shown_address", "is_enabled", "failures_in_row", "paused_until", "last_success_at",
    )  # fmt: skip
    list_filter = ("kind", "is_enabled", ("project", ProjectFilter))
    search_fields = ("public_id__exact", "name", "shown_address")
    list_select_related = ("project",)
    fields = (
        "public_id", "project", "name", "kind", "shown_address", "is_enabled", "failures_in_row", "paused_until",
        "last_success_at", "last_failure_at", "last_problem", "created_at",
    )  # fmt: skip


@admin.register(AlertRoute)
class RoutePage(ReadOnlyMixin, ProjectAdmin):
    """Alert routes."""

    list_display = (
        "name",
        "project",
        "position",
        "is_enabled",
        "goes_on",
        "includes_demo",
        "group_wait_seconds",
    )
    list_filter = ("is_enabled", ("project", ProjectFilter))
    search_fields = ("public_id__exact", "name")
    list_select_related = ("project",)
    fields = (
        "public_id", "project", "name", "position", "is_enabled", "destinations", "transitions", "kinds", "severities", "tools",
        "agents", "backends", "model_names", "goes_on", "includes_demo", "group_by", "group_wait_seconds", "quiet_from",
        "quiet_until", "quiet_zone", "quiet_holds_critical", "repeat_hours",
    )  # fmt: skip


class AttemptInline(ReadOnlyMixin, BaseInline):
    """Attempts to deliver a notification."""

    model = AlertAttempt
    extra = 0
    fields = ("number", "at", "duration_ms", "is_success", "status", "problem", "answer")


@admin.register(AlertDelivery)
class DeliveryPage(ReadOnlyMixin, ProjectAdmin):
    """Notifications with their attempts."""

    list_display = (
        "public_id", "title", "destination", "project", "state", "attempt_count", "created_at", "due_at", "page",
    )  # fmt: skip
    list_filter = ("state", "is_test", ("project", ProjectFilter))
    search_fields = ("public_id__exact", "title", "route_name", "destination__name")
    list_select_related = ("project", "destination")
    ordering = ("-id",)
    inlines = (AttemptInline,)
    fields = (
        "public_id", "project", "destination", "route_name", "title", "is_test", "state", "attempt_count", "created_at", "due_at",
        "finished_at",
    )  # fmt: skip

    @admin.display(description="console")
    def page(self, delivery: AlertDelivery) -> str:
        """Link to the notification in the console, which shows its payload."""
        url = reverse("console:delivery", args=[delivery.project.slug, delivery.public_id])
        return format_html('<a href="{}">open</a>', url)
