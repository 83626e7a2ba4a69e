"""Counts of calls by hour and session, so that statistics over months read thousands of rows, not millions of events.

Written by `services.maintenance.hourly_counts`. Incidents are few and are counted from their own rows.
"""

from __future__ import annotations

from django.db import models

from detection.models.projects import Project
from detection.models.sessions import Session
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel, TenantOneToOneField


class CallCount(TenantModel):
    """Counts of the calls of one hour (UTC), backend, model and tool. Kept when the calls are deleted."""

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="call_counts")
    hour = models.DateTimeField()
    is_demo = models.BooleanField(default=False)
    backend = models.CharField(max_length=128)
    model = models.CharField(max_length=200)
    tool = models.CharField(max_length=128)
    checks = models.BigIntegerField(default=0)
    warned = models.BigIntegerField(default=0)
    blocked = models.BigIntegerField(default=0, help_text="By their verdict, whatever became of it.")
    allowed_later = models.BigIntegerField(
        default=0, db_default=0, help_text="Of these, held and delayed calls that were allowed in the end."
    )
    token_count = models.BigIntegerField(default=0)
    cost_usd = models.DecimalField(max_digits=18, decimal_places=6, default=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("project", "hour", "is_demo", "backend", "model", "tool"), name="counted_by_the_hour"
            ),
        )

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}h {self.tool}"


class SessionTool(TenantModel):
    """Calls of one tool in one session, counted together with the hours; deleted with the session."""

    pk = models.CompositePrimaryKey("project_id", "session_id", "tool")
    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantForeignKey(Session, on_delete=models.CASCADE, related_name="tools", db_index=False)
    tool = models.CharField(max_length=128)
    calls = models.IntegerField(default=0)
    warned = models.IntegerField(default=0)
    blocked = models.IntegerField(default=0)

    class Meta:
        indexes = (models.Index(fields=("tool", "session"), name="sessions_of_tool"),)

    def __str__(self) -> str:
        return f"{self.session_id} {self.tool}"


class AllowedCall(TenantModel):
    """A call that was refused and has run, or was allowed in the end, until it no longer counts as blocked."""

    pk = models.CompositePrimaryKey("project_id", "session_id", "seq")
    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantForeignKey(Session, on_delete=models.CASCADE, related_name="+", db_index=False)
    seq = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.session_id}/{self.seq}"


class CountedSession(TenantModel):
    """Counting progress of a session; deleted with the session."""

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantOneToOneField(Session, primary_key=True, on_delete=models.CASCADE, related_name="+")
    counted_seq = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.session_id} to {self.counted_seq}"


class CountingCursor(models.Model):
    """The single row that records which transactions have been counted, and when."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    seen_xid = models.BigIntegerField(default=0)
    counted_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (models.CheckConstraint(condition=models.Q(id=1), name="one_counting_cursor"),)

    def __str__(self) -> str:
        return f"to {self.seen_xid}"
