"""Custom message templates of projects."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from detection.models.projects import Project
from detection.models.tenants import ProjectKey, TenantModel


class MessageTemplate(TenantModel):
    """The message template of a rung, for one wire shape or, if empty, for all. Without a row, the default applies."""

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="message_templates")
    rung = models.CharField(max_length=16)
    shape = models.CharField(max_length=16, blank=True, default="")
    text = models.CharField(max_length=1000)
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, editable=False
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("rung", "shape")
        constraints = (
            models.UniqueConstraint(
                fields=("project", "rung", "shape"), name="one_template_per_rung_and_shape"
            ),
        )

    def __str__(self) -> str:
        return f"{self.rung} {self.shape}".strip()
