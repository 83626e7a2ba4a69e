"""What-ifs: replays of the history of a project under a changed policy, with their progress and what they found."""

from __future__ import annotations

from functools import partial

from django.db import models

from detection.models.jobs import Job, JobState, job_constraints, job_indexes
from detection.models.projects import Project
from detection.models.public_ids import new_id
from detection.models.tenants import ProjectKey


class WhatIf(Job):
    """A replay of the sessions of the last days under the current policy and under a changed one.

    Sessions are replayed newest first. `cursor` is the id of the session replayed last, and moves in the statement that
    stores what was found in it, so that a piece of work counts once however often workers die.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="what_ifs")
    public_id = models.CharField(max_length=32, default=partial(new_id, "wif_"), editable=False)
    change = models.JSONField(help_text="The scope, and what its override or tool rule would contain.")
    days = models.PositiveSmallIntegerField()
    since = models.DateTimeField(help_text="Incidents that were opened earlier do not count.")

    policy_version = models.BigIntegerField(
        default=0, help_text="That of the project during the replay; 0 before."
    )
    starts = models.IntegerField(
        default=0, help_text="How many workers have started on the piece that is due."
    )
    cursor = models.BigIntegerField(null=True)
    sessions = models.IntegerField(default=0, help_text="Sessions of the time, once a worker has started.")
    calls = models.BigIntegerField(default=0, help_text="Their calls.")
    done_sessions = models.IntegerField(default=0)
    done_calls = models.BigIntegerField(default=0)
    work_seconds = models.FloatField(default=0)
    result = models.JSONField(default=dict)

    class Meta(Job.Meta):
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="what_if_id"),
            *job_constraints("what_if"),
        )
        indexes = job_indexes("what_if")

    def __str__(self) -> str:
        return f"{self.public_id}: {self.change.get('scope')}, {self.state}"

    @property
    def share(self) -> float:
        """Share of the calls that has been replayed, from 0 to 1."""
        if self.state == JobState.FINISHED:
            return 1.0
        return min(1.0, self.done_calls / self.calls) if self.calls else 0.0
