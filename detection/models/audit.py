"""The audit log. A database trigger prevents updates and deletes."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from detection.models.projects import Project

SESSION_ACTIONS = ("session.policy", "session.stop", "session.resume", "session.exemption.revoke")
"""Changes of one session by people, which a replay of the session looks up by its name."""


class AuditEntry(models.Model):
    """A change of a state or a setting, written in the transaction of the change."""

    project = models.ForeignKey(
        Project, null=True, blank=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="audit"
    )
    at = models.DateTimeField(db_default=Now())
    actor = models.CharField(max_length=150, help_text="A user name, key:<id>, command or system.")
    action = models.CharField(
        max_length=64, help_text="What was done, as in session.stop, policy.save or key.create."
    )
    subject = models.CharField(max_length=300, help_text="What was changed.")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    address = models.GenericIPAddressField(null=True)
    request_id = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        ordering = ("-at", "-id")
        verbose_name_plural = "audit entries"
        indexes = (
            models.Index(fields=("project", "-at", "-id"), name="audit_newest"),
            models.Index(
                fields=("project", "subject"),
                name="audit_of_session",
                condition=models.Q(action__in=SESSION_ACTIONS),
            ),
        )

    def __str__(self) -> str:
        return f"{self.action} {self.subject} by {self.actor}"
