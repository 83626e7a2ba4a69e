"""Events whose evaluation raised an error."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from detection.models.projects import Project
from detection.models.sessions import Session
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel


class QuarantinedEvent(TenantModel):
    """An event whose evaluation raised an error. Its session continued without it; a successful retry deletes it."""

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="+")
    session = TenantForeignKey(
        Session, on_delete=models.CASCADE, related_name="quarantined_events", db_index=False
    )
    seq = models.IntegerField(help_text="Sequence number of the event in its session.")
    type = models.CharField(max_length=8)
    tool = models.CharField(max_length=128, blank=True, default="", db_default="")
    error = models.CharField(max_length=300)
    traceback = models.TextField(blank=True, default="", db_default="", help_text="The end of the traceback.")
    at = models.DateTimeField(db_default=Now(), help_text="When its evaluation failed last.")

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("project", "session", "seq"), name="event_quarantined_once"),
        )
        indexes = (models.Index(fields=("project", "-id"), name="quarantined_newest"),)

    def __str__(self) -> str:
        return f"event {self.seq} of {self.session_id}"
