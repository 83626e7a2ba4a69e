"""Saved views of lists."""

from __future__ import annotations

import secrets

from django.db import models
from django.db.models.functions import Now

from detection.models.projects import Project
from detection.models.tenants import ProjectKey, TenantModel


def new_view_id() -> str:
    """Return a new opaque id with its type prefix, 60 random bits."""
    return f"view_{secrets.token_hex(8)}"


class SavedView(TenantModel):
    """A named filter, range and order of a list, shared in its project."""

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="saved_views")
    public_id = models.CharField(max_length=32, default=new_view_id, editable=False)
    list = models.CharField(max_length=32, help_text="Name of the list.")
    name = models.CharField(max_length=80)
    query = models.CharField(
        max_length=4000, blank=True, help_text="Query string of the list's address, without a page."
    )
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("name", "id")
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="saved_view_id"),
            models.UniqueConstraint(fields=("project", "list", "name"), name="view_named_once"),
        )

    def __str__(self) -> str:
        return f"{self.list}: {self.name}"
