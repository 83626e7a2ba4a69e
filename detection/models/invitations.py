"""Invitations into a project, by a link whose token is stored as a digest."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from detection.models.projects import Project, Role


class Invitation(models.Model):
    """A link that lets one person join a project with a role, once.

    `public_id` is the readable part of the token; `digest` is the SHA-256 of the whole token.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="invitations")
    role = models.CharField(max_length=16, choices=Role.choices)
    recipient = models.CharField(max_length=120, blank=True, default="", help_text="Whom it is for.")
    public_id = models.CharField(max_length=16, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, editable=False)
    accepted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    revoked_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = (
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="invitation_role_known"),
        )

    def __str__(self) -> str:
        return f"{self.public_id} into {self.project}: {self.role}"
