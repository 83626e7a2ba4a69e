"""Actions of people on many rows of a list, carried out in steps."""

from __future__ import annotations

import secrets

from django.db import models
from django.db.models.functions import Now

from detection.models.projects import Project
from detection.models.tenants import ProjectKey, TenantModel, TenantOneToOneField


def new_bulk_action_id() -> str:
    """Return a new opaque id with its type prefix, 64 random bits."""
    return f"bulk_{secrets.token_hex(8)}"


class BulkAction(TenantModel):
    """One action on many loops.

    A request begins it and a worker continues: of `targets`, the first `done` were reached. `finished_at` is empty
    until that is all of them, or someone has undone it. `reverts` is the action that an undo reverts.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="bulk_actions")
    public_id = models.CharField(max_length=32, default=new_bulk_action_id, editable=False)
    action = models.CharField(max_length=16)
    arguments = models.JSONField(default=dict)
    actor = models.CharField(max_length=150)
    actor_user_id = models.IntegerField(null=True)
    targets = models.JSONField(help_text="Primary keys of the rows, in the order in which they are changed.")
    total = models.IntegerField()
    done = models.IntegerField(default=0)
    changed = models.IntegerField(default=0)
    failures = models.JSONField(default=dict, help_text="How many rows could not be changed, by code.")
    reverts = TenantOneToOneField("self", null=True, on_delete=models.CASCADE, related_name="reverted_by")
    created_at = models.DateTimeField(db_default=Now())
    claimed_until = models.DateTimeField(null=True, help_text="Until when a process carries it out.")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="bulk_action_id"),
            models.UniqueConstraint(fields=("project", "reverts"), name="bulk_action_reverted_once"),
            models.UniqueConstraint(
                fields=("project",),
                condition=models.Q(finished_at=None),
                name="one_bulk_action_at_a_time",
            ),
        )
        indexes = (models.Index(fields=("project", "-id"), name="bulk_action_newest"),)

    def __str__(self) -> str:
        return f"{self.action} of {self.total} loops"
