"""Families: sessions that started one another."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from detection.models.projects import Project
from detection.models.tenants import ProjectKey, TenantModel


class SessionFamily(TenantModel):
    """What the sessions of one family share, named after the session at the top, whether or not that one is stored.

    Its row is locked after the row of a session, never before, and by whoever folds a session of the family. Only
    projects in which a detector looks across families have such rows.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="families")
    name = models.CharField(max_length=256, help_text="The session at the top.")
    snapshot = models.BinaryField(default=b"")
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "families"
        constraints = (models.UniqueConstraint(fields=("project", "name"), name="family_named_once"),)
        indexes = (models.Index(fields=("updated_at",), name="family_age"),)

    def __str__(self) -> str:
        return self.name
