"""Jobs that people give to a worker: what all kinds of them store of their progress and their end."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from detection.models.tenants import TenantModel


class JobState(models.TextChoices):
    """State of a job. If its worker dies, another worker continues it."""

    WAITING = "waiting", "Waiting"
    RUNNING = "running", "Running"
    FINISHED = "finished", "Finished"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


OPEN_STATES = (JobState.WAITING, JobState.RUNNING)


class Job(TenantModel):
    """Columns that all jobs share. `finished_at` is empty exactly while the job is waiting or running."""

    created_by = models.CharField(max_length=150)

    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.WAITING)
    error = models.CharField(max_length=500, blank=True, default="")
    error_code = models.CharField(max_length=32, blank=True, default="")

    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    finished_by = models.CharField(max_length=150, blank=True, default="", help_text="Who cancelled it.")

    class Meta:
        abstract = True
        ordering = ("-created_at", "-id")

    @property
    def is_open(self) -> bool:
        """Whether it is waiting or running."""
        return self.state in OPEN_STATES


def job_constraints(noun: str) -> tuple[models.BaseConstraint, ...]:
    """Return what is checked of a kind of jobs: an end has its time, and a failure its error."""
    return (
        models.CheckConstraint(
            name=f"{noun}_open_or_finished",
            condition=models.Q(state__in=("waiting", "running"), finished_at__isnull=True)
            | models.Q(state__in=("finished", "failed", "cancelled"), finished_at__isnull=False),
        ),
        models.CheckConstraint(
            name=f"{noun}_failed_with_error", condition=models.Q(state="failed") ^ models.Q(error="")
        ),
    )


def job_indexes(noun: str) -> tuple[models.Index, ...]:
    """Return the indexes of a kind of jobs: for the list of a project, and for workers."""
    return (
        models.Index(fields=("project", "-created_at", "-id"), name=f"{noun}_newest"),
        models.Index(
            fields=("id",), name=f"{noun}_open", condition=models.Q(state__in=("waiting", "running"))
        ),
    )
