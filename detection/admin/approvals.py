"""Approvals and calls of the judge, read-only. Approvals are decided in the console."""

from __future__ import annotations

from django.contrib import admin

from detection.admin.base import ProjectAdmin, ProjectFilter, ReadOnlyMixin
from detection.models import Approval, JudgeCall


@admin.register(Approval)
class ApprovalPage(ReadOnlyMixin, ProjectAdmin):
    """Approvals of held calls."""

    list_display = (
        "public_id", "project", "state", "decider", "session_name", "agent", "tool", "choice", "decided_by",
        "requested_at",
    )  # fmt: skip
    list_filter = ("state", "decider", "choice", "kind", ("project", ProjectFilter))
    search_fields = (
        "public_id__exact",
        "session__external_id__startswith",
        "agent__startswith",
        "tool",
        "decided_by",
    )
    list_select_related = ("project", "session")
    ordering = ("-id",)
    fields = (
        "public_id", "project", "session", "incident", "state", "decider", "agent", "tool", "call_id", "held_calls",
        "kind", "count", "limit", "window_seconds", "unit", "summary", "requested_at", "deadline", "unattended",
        "choice", "raise_by", "decision", "message", "reason", "decided_by", "decided_at",
    )  # fmt: skip

    @admin.display(description="session", ordering="session__external_id")
    def session_name(self, approval: Approval) -> str:
        """The client's name of the session."""
        return approval.session.external_id


@admin.register(JudgeCall)
class JudgeCallPage(ReadOnlyMixin, ProjectAdmin):
    """Calls of the judge."""

    list_display = (
        "at", "project", "outcome", "error", "was_sent", "model", "rounds_granted", "latency_ms", "cost_usd",
        "label", "incident",
    )  # fmt: skip
    list_filter = ("outcome", "label", "was_sent", "at", ("project", ProjectFilter))
    search_fields = ("incident__public_id__exact", "approval__public_id__exact", "error", "model", "host")
    list_select_related = ("project", "incident")
    ordering = ("-id",)
    fields = (
        "at", "project", "incident", "approval", "outcome", "error", "was_sent", "host", "model", "request",
        "response", "reason", "guidance", "rounds_proposed", "rounds_granted", "policy_version", "latency_ms",
        "input_tokens", "output_tokens", "cost_usd", "label", "labelled_by", "labelled_at",
    )  # fmt: skip
