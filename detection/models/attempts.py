"""Recent requests to the events and guard routes, rejected ones included, for the Connect and Ingest screens."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from detection.models.projects import Project


class Attempt(models.Model):
    """A summary of requests to the events or guard route. Housekeeping keeps the newest of each project."""

    project = models.ForeignKey(Project, null=True, on_delete=models.CASCADE, related_name="attempts")
    at = models.DateTimeField(db_default=Now())
    route = models.CharField(max_length=32)
    key_hint = models.CharField(
        max_length=24, blank=True, default="", help_text="The part of the key that may be shown."
    )
    status = models.PositiveSmallIntegerField()
    code = models.CharField(max_length=48, blank=True, default="", help_text="Stable code of the error.")
    detail = models.CharField(max_length=300, blank=True, default="")
    decision = models.CharField(
        max_length=8, blank=True, default="", db_default="", help_text="What a guard request was answered."
    )
    times = models.IntegerField(
        default=1, db_default=1, help_text="Identical requests within half a second are one row."
    )
    accepted = models.IntegerField(default=0)
    duplicate = models.IntegerField(default=0)
    altered = models.IntegerField(default=0)
    rejected = models.IntegerField(default=0)

    class Meta:
        indexes = (models.Index(fields=("project", "-id"), name="attempt_newest"),)

    def __str__(self) -> str:
        return f"{self.route} {self.status} {self.code}"
