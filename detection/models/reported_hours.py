"""Events that projects reported, by hour: what is usual, and when it was exceeded."""

from __future__ import annotations

from django.db import models

from detection.models.projects import Project
from detection.models.tenants import ProjectKey, TenantModel


class ReportedHour(TenantModel):
    """Events that a project reported in one hour (UTC), from all processes; kept for `HOURS_KEPT`.

    Written by `services.ingestion.spikes`. Reported are events and OpenTelemetry, not calls that the guard is asked
    about.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="reported_hours")
    hour = models.DateTimeField()
    events = models.BigIntegerField(default=0, help_text="Valid events, duplicates included.")
    minute = models.SmallIntegerField(default=0, help_text="The newest minute with any, from 0 to 59.")
    minute_events = models.BigIntegerField(default=0, help_text="Those of this minute.")
    rejected = models.BigIntegerField(default=0, help_text="Requests answered with 429 above the limit.")
    sampled = models.BigIntegerField(default=0, help_text="Events above the limit that were not stored.")
    spiked_at = models.DateTimeField(null=True, help_text="When the rate was last above the limit.")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("project", "hour"), name="reported_by_the_hour"),)

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}h {self.events}"
