"""The stored tiers of settings. Which fields exist and what is valid is the engine's policy; what wins is resolved there."""

from __future__ import annotations

from typing import cast

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models

from detection.engine import policy
from detection.engine.tool_classes import ToolClass
from detection.models.projects import Project


class TierScope(models.TextChoices):
    """Where a tier holds; a narrower one wins, field by field."""

    SERVER = "server", "Server: every project"
    PROJECT = "project", "Project"
    BACKEND = "backend", "Backend"
    MODEL = "model", "Backend and model"


class PolicyTier(models.Model):
    """Settings of one tier; a field that is absent from `values` is inherited from the tier below."""

    scope = models.CharField(max_length=8, choices=TierScope.choices)
    project = models.ForeignKey(
        Project, null=True, blank=True, on_delete=models.CASCADE, related_name="policy_tiers"
    )
    backend = models.CharField(max_length=128, blank=True, default="")
    model = models.CharField(max_length=200, blank=True, default="")
    values = models.JSONField(default=dict, blank=True)
    note = models.CharField(
        max_length=300, blank=True, default="", help_text="Why; asked for when a setting is loosened."
    )
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, editable=False
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("scope", "backend", "model")
        constraints = (
            models.UniqueConstraint(
                fields=("project", "backend", "model"), name="one_tier_per_place", nulls_distinct=False
            ),
            models.CheckConstraint(
                name="tier_place_fits_scope",
                condition=(
                    models.Q(scope="server", project__isnull=True, backend="", model="")
                    | models.Q(scope="project", project__isnull=False, backend="", model="")
                    | models.Q(
                        models.Q(scope="backend", project__isnull=False, model=""), ~models.Q(backend="")
                    )
                    | models.Q(
                        models.Q(scope="model", project__isnull=False),
                        ~models.Q(backend=""),
                        ~models.Q(model=""),
                    )
                ),
            ),
        )

    def __str__(self) -> str:
        return self.source

    @property
    def source(self) -> str:
        """The tier as verdicts name it: ``server``, ``project``, ``backend:openai`` or ``model:openai/gpt-5``."""
        if self.scope == TierScope.BACKEND:
            return f"backend:{self.backend}"
        if self.scope == TierScope.MODEL:
            return f"model:{self.backend}/{self.model}"
        return self.scope

    def clean(self) -> None:
        """Refuse values that the engine would refuse."""
        try:
            self.values = policy.validate(self.values)
        except policy.PolicyError as error:
            raise ValidationError({"values": str(error)}) from error


class ToolRule(models.Model):
    """What is special about the tools whose name matches `pattern` (a glob)."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="tool_rules")
    pattern = models.CharField(max_length=128, help_text="A glob on the tool name: search_*, mcp__github__*")
    tool_class = models.CharField(
        max_length=16,
        blank=True,
        default="",
        help_text="read, change, poll, wait, message, fallible or exempt",
    )
    ignore_arguments = models.JSONField(
        default=list, blank=True, help_text='Paths that identity leaves out: ["request_id", "meta.nonce"]'
    )
    volatile_result_fields = models.JSONField(
        default=list, blank=True, help_text="Result fields that change without meaning."
    )
    values = models.JSONField(default=dict, blank=True, help_text="Settings that hold for these tools only.")
    exempt = models.BooleanField(default=False, help_text="Never counted, never stopped.")
    note = models.CharField(max_length=300, blank=True, default="")
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, editable=False
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("pattern",)
        constraints = (models.UniqueConstraint(fields=("project", "pattern"), name="one_rule_per_pattern"),)

    def __str__(self) -> str:
        return self.pattern

    def clean(self) -> None:
        """Refuse values that the engine would refuse."""
        try:
            self.values = policy.validate(self.values)
            policy.ToolRule(
                pattern=self.pattern,
                tool_class=cast("ToolClass | None", self.tool_class or None),
                ignore_arguments=tuple(self.ignore_arguments),
                volatile_result_fields=tuple(self.volatile_result_fields),
            )
        except policy.PolicyError as error:
            field = "tool_class" if error.field == "tool_class" else "values"
            raise ValidationError({field: str(error)}) from error
