"""A project's own wording of what agents are told."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from detection.models.projects import Project


class MessageTemplate(models.Model):
    """The text of one rung, for one wire shape or (empty) for all of them; absent means the default wording."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="message_templates")
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
            models.UniqueConstraint(fields=("project", "rung", "shape"), name="one_text_per_rung_and_shape"),
        )

    def __str__(self) -> str:
        return f"{self.rung} {self.shape}".strip()
