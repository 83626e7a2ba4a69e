"""Stored overrides and tool rules. The engine decides which settings and values are valid, and which scope wins."""

from __future__ import annotations

from typing import ClassVar, Self, TypeVar

from django.conf import settings
from django.db import models
from django.db.models import F, Func, Q, TextField, Value
from django.db.models.lookups import Exact
from django.utils import timezone

from detection.engine.scopes import MAX_NAME_CHARACTERS, SERVER, Scope
from detection.engine.tool_classes import TOOL_CLASSES
from detection.models.projects import Project
from detection.models.tenants import ProjectKey, TenantModel


def _is_json(column: str, kind: str) -> Exact:
    return Exact(Func(F(column), function="jsonb_typeof", output_field=TextField()), Value(kind))


_Row = TypeVar("_Row", bound="StoredSettings", covariant=True)


class StoredSettingsQuerySet(models.QuerySet[_Row]):
    """Rows of overrides or of tool rules."""

    def in_effect(self) -> Self:
        """Keep what applies now: of each scope its temporary row until that expires, otherwise its permanent one."""
        names = ("project_id", *self.model.scope_fields)
        unexpired = self.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()))
        first = unexpired.order_by(*names, F("expires_at").asc(nulls_last=True)).distinct(*names)
        return self.filter(pk__in=first.values("pk"))


class StoredSettings(models.Model):
    """Columns that overrides and tool rules share; a setting that `values` does not contain is inherited.

    A scope has at most one permanent row, and one temporary row that applies instead of it until it expires.
    """

    project_id: int | None
    scope_fields: ClassVar[tuple[str, ...]]
    """The fields that name the scope within the project; a `Scope` has them too."""

    values = models.JSONField(default=dict, blank=True)
    note = models.CharField(max_length=300, blank=True, default="", help_text="Reason of the last change.")
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, editable=False
    )
    updated_at = models.DateTimeField(auto_now=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: it does not expire.")

    objects = StoredSettingsQuerySet.as_manager()

    class Meta:
        abstract = True

    @property
    def scope(self) -> Scope:
        """Where the settings apply."""
        raise NotImplementedError


def _one_row_per_scope(noun: str, message: str, *fields: str) -> tuple[models.UniqueConstraint, ...]:
    return tuple(
        models.UniqueConstraint(
            fields=("project", *fields),
            name=f"one_{kind}_{noun}",
            condition=Q(expires_at__isnull=kind == "permanent"),
            nulls_distinct=False,
            violation_error_message=message,
        )
        for kind in ("permanent", "temporary")
    )


class Override(StoredSettings):
    """Settings of one scope: the server, a project, or an agent, backend or model within a project."""

    scope_fields = ("agent", "backend", "model")

    project = models.ForeignKey(
        Project,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="overrides",
        help_text="Empty: every project.",
    )
    agent = models.CharField(max_length=MAX_NAME_CHARACTERS["agent"], blank=True, default="")
    backend = models.CharField(max_length=MAX_NAME_CHARACTERS["backend"], blank=True, default="")
    model = models.CharField(
        max_length=MAX_NAME_CHARACTERS["model"], blank=True, default="", help_text="Requires a backend."
    )

    class Meta:
        ordering = ("project", "agent", "backend", "model")
        indexes = (
            models.Index(
                fields=("expires_at",), name="override_expiry", condition=Q(expires_at__isnull=False)
            ),
        )
        constraints = (
            *_one_row_per_scope(
                "override",
                "This scope already has an override. Change that one.",
                "agent",
                "backend",
                "model",
            ),
            models.CheckConstraint(
                name="override_names_a_scope",
                violation_error_message=(
                    "An agent or a backend needs a project, a model needs a backend, and an agent has neither."
                ),
                condition=(
                    Q(agent="", backend="", model="")
                    | (
                        Q(project__isnull=False)
                        & (Q(Q(backend="", model=""), ~Q(agent="")) | Q(Q(agent=""), ~Q(backend="")))
                    )
                ),
            ),
            models.CheckConstraint(
                name="override_values_are_an_object", condition=_is_json("values", "object")
            ),
        )

    def __str__(self) -> str:
        return self.scope.label

    @property
    def scope(self) -> Scope:
        """The scope; rows without a project apply to every project."""
        return Scope.of(self.agent, self.backend, self.model) if self.project_id else SERVER


class ToolOverride(StoredSettings, TenantModel):
    """A tool rule: settings and facts for the tools of a project whose name matches `pattern`."""

    scope_fields = ("pattern",)

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="tool_overrides")
    pattern = models.CharField(
        max_length=MAX_NAME_CHARACTERS["pattern"], help_text="Glob on the tool name: search_*, mcp__github__*"
    )
    tool_class = models.CharField(
        max_length=16,
        blank=True,
        default="",
        help_text=f"{', '.join(TOOL_CLASSES)}; empty for the built-in class.",
    )
    ignore_arguments = models.JSONField(
        default=list,
        blank=True,
        help_text='Argument paths that identity ignores: ["request_id", "meta.nonce"]',
    )
    volatile_result_fields = models.JSONField(
        default=list, blank=True, help_text='Result fields that change without meaning: ["timestamp"]'
    )
    exempt = models.BooleanField(default=False, help_text="Never counted, never stopped.")

    class Meta:
        verbose_name = "tool rule"
        ordering = ("pattern",)
        indexes = (
            models.Index(
                fields=("expires_at",), name="tool_rule_expiry", condition=Q(expires_at__isnull=False)
            ),
        )
        constraints = (
            *_one_row_per_scope(
                "tool_rule", "This pattern already has a tool rule. Change that one.", "pattern"
            ),
            models.CheckConstraint(
                name="tool_rule_class_known", condition=Q(tool_class__in=("", *TOOL_CLASSES))
            ),
            models.CheckConstraint(
                name="tool_rule_lists_and_values",
                condition=(
                    Q(_is_json("values", "object"))
                    & Q(_is_json("ignore_arguments", "array"))
                    & Q(_is_json("volatile_result_fields", "array"))
                ),
            ),
        )

    def __str__(self) -> str:
        return self.pattern

    @property
    def scope(self) -> Scope:
        """The scope of the tools."""
        return Scope("tool", pattern=self.pattern)
