"""Reports of a week, each behind a link that needs no account."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from detection.models.projects import Project


class Report(models.Model):
    """A link to the figures of a time, for people without an account.

    `public_id` is the readable part of the token, which is not stored. The figures are not stored either: they are
    counted when the link is opened, so what was erased or labelled since is in no report.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="reports")
    public_id = models.CharField(max_length=16, unique=True, editable=False)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+", editable=False
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, editable=False)
    is_weekly = models.BooleanField(
        default=False, editable=False, help_text="Made on a Monday for the routes that ask for it."
    )

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = (
            models.UniqueConstraint(
                fields=("project", "ends_at"),
                condition=models.Q(is_weekly=True),
                name="one_report_of_a_week",
            ),
        )

    def __str__(self) -> str:
        return f"{self.public_id} of {self.project}"
