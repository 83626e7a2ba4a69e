"""Alert destinations, routes and notifications, read-only. The console changes them.

Addresses and signing secrets are not shown; `shown_address` is what people see.
"""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html

from detection.admin.base import BaseInline, ProjectAdmin, ProjectFilter, ReadOnlyMixin
from detection.models import AlertDestination, AlertRoute, DeliveryAttempt, Notification


@admin.register(AlertDestination)
class DestinationPage(ReadOnlyMixin, ProjectAdmin):
    """Destinations of alerts."""

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
    """Routes of alerts."""

    list_display = (
        "name",
        "project",
        "position",
        "is_enabled",
        "continue_matching",
        "includes_demo",
        "group_wait_seconds",
    )
    list_filter = ("is_enabled", ("project", ProjectFilter))
    search_fields = ("public_id__exact", "name")
    list_select_related = ("project",)
    fields = (
        "public_id", "project", "name", "position", "is_enabled", "destinations", "event_types", "kinds",
        "severities", "tools", "agents", "backends", "model_names", "continue_matching", "includes_demo",
        "group_by", "group_wait_seconds", "quiet_from", "quiet_until", "quiet_zone", "quiet_delays_critical",
        "repeat_interval_hours",
    )  # fmt: skip


class AttemptInline(ReadOnlyMixin, BaseInline):
    """Attempts to send a notification."""

    model = DeliveryAttempt
    extra = 0
    fields = ("number", "at", "duration_ms", "is_success", "status", "problem", "response")


@admin.register(Notification)
class NotificationPage(ReadOnlyMixin, ProjectAdmin):
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
        "public_id", "project", "destination", "route_name", "title", "is_test", "state", "attempt_count",
        "created_at", "due_at", "finished_at",
    )  # fmt: skip

    @admin.display(description="console")
    def page(self, notification: Notification) -> str:
        """Link to the notification in the console."""
        url = reverse("console:notification", args=[notification.project.slug, notification.public_id])
        return format_html('<a href="{}">open</a>', url)
