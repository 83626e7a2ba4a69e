"""Reports of a week, each behind a link that needs no account."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from detection.models.projects import Project


class Report(models.Model):
    """A link to the figures of a time, for people without an account.

    `public_id` is the readable part of the token; `digest` is the SHA-256 of the whole token. The figures are not
    stored: they are counted when the link is opened, so what was erased or labelled since is in no report.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="reports")
    public_id = models.CharField(max_length=16, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ("-created_at", "-id")

    def __str__(self) -> str:
        return f"{self.public_id} of {self.project}"
