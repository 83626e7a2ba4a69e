"""The index of texts: for a stretch of a session's events, which pieces of text occur in it.

Written by `services.search.indexing`, read by `selectors.search`; deleted with the session.
"""

from __future__ import annotations

from django.db import models

from detection.models.projects import Project
from detection.models.sessions import Session
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel


class SearchBlock(TenantModel):
    """The signature of consecutive events of a session, as `filtering.signatures` makes it.

    The newest block of a session says how far the session is indexed.
    """

    pk = models.CompositePrimaryKey("project_id", "session_id", "first_seq")
    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantForeignKey(Session, on_delete=models.CASCADE, related_name="+", db_index=False)
    first_seq = models.IntegerField()
    last_seq = models.IntegerField()
    calls = models.IntegerField(help_text="Number of calls among the events.")
    bare_calls = models.IntegerField(help_text="Of these, calls stored without their arguments.")
    events = models.IntegerField(help_text="Number of events with a text.")
    bits = models.IntegerField(help_text="Length of the signature in bits.")
    signature = models.BinaryField()

    def __str__(self) -> str:
        return f"{self.session_id}/{self.first_seq} to {self.last_seq}"


class IndexingCursor(models.Model):
    """The single row that records which transactions have been indexed."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    seen_xid = models.BigIntegerField(default=0)

    class Meta:
        constraints = (models.CheckConstraint(condition=models.Q(id=1), name="one_indexing_cursor"),)

    def __str__(self) -> str:
        return f"to {self.seen_xid}"
