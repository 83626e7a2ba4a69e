"""Notices to operators that a session comes close to a limit. The agent never sees them; what stops it is an incident."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from detection.models.sessions import Session


class LimitNotice(models.Model):
    """A session had used most of a limit; once per session and limit, whatever restarts and rebuilds come between."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="limit_notices")
    unit = models.CharField(max_length=16, help_text="What the limit counts: rounds, calls, seconds …")
    used = models.FloatField()
    limit = models.FloatField()
    seq = models.IntegerField(help_text="The call that came so close.")
    tool = models.CharField(max_length=128)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("at", "id")
        constraints = (
            models.UniqueConstraint(fields=("session", "unit", "limit"), name="one_notice_per_limit"),
        )

    def __str__(self) -> str:
        return f"{self.used:g} of {self.limit:g} {self.unit} in {self.session_id}"
