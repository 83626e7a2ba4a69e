"""Notices that a session has nearly reached a limit. People see them, the agent does not."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from detection.models.projects import Project
from detection.models.sessions import Session
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel


class LimitNotice(TenantModel):
    """A limit that a session has nearly reached; once per session and limit, also across restarts and rebuilds."""

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantForeignKey(Session, on_delete=models.CASCADE, related_name="limit_notices")
    kind = models.CharField(max_length=16, help_text="The detector of the limit.")
    unit = models.CharField(max_length=16, help_text="Unit of the limit: rounds, calls, seconds …")
    used = models.FloatField()
    limit = models.FloatField()
    seq = models.IntegerField(help_text="Sequence number of the call that crossed the threshold.")
    call_number = models.IntegerField(help_text="Which call of the session that was, from 1.")
    tool = models.CharField(max_length=128)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("at", "id")
        constraints = (
            models.UniqueConstraint(
                fields=("project", "session", "kind", "unit", "limit"), name="one_notice_per_limit"
            ),
        )

    def __str__(self) -> str:
        return f"{self.used:g} of {self.limit:g} {self.unit} in {self.session_id}"
