"""Decisions of people about suggestions, which are learned from labelled incidents."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from detection.models.projects import Project
from detection.models.tenants import ProjectKey, TenantModel


class SuggestionDecision(models.TextChoices):
    """What a person decided about a suggestion."""

    ACCEPTED = "accepted", "Accepted"
    REJECTED = "rejected", "Rejected"


class Suggestion(TenantModel):
    """An accepted or rejected suggestion, by its latest decision. Others are not stored: they follow from labels."""

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="suggestions")
    public_id = models.CharField(
        max_length=32, editable=False, help_text="The same for the same suggestion, whenever it is computed."
    )
    kind = models.CharField(max_length=20)
    words = models.CharField(max_length=300)
    reason = models.CharField(max_length=500)
    change = models.JSONField(help_text="The scope, and what its override or tool rule would contain.")
    labels = models.PositiveIntegerField(help_text="Labelled incidents behind it.")
    decision = models.CharField(max_length=10, choices=SuggestionDecision.choices)
    note = models.CharField(max_length=300, blank=True, default="")
    decided_by = models.CharField(max_length=150)
    decided_at = models.DateTimeField(db_default=Now())
    audit_entry = models.BigIntegerField(
        null=True, help_text="Of an accepted one: the audit entry of the changed policy, for undo."
    )

    class Meta:
        ordering = ("-decided_at", "-id")
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="suggestion_decided_once"),
        )

    def __str__(self) -> str:
        return f"{self.public_id}: {self.words}, {self.decision}"
