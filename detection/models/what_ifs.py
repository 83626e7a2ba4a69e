"""What-ifs: replays of the history of a project under a changed policy, with their progress and what they found."""

from __future__ import annotations

import secrets

from django.db import models
from django.db.models.functions import Now

from detection.models.incidents import PUBLIC_ID_ALPHABET
from detection.models.projects import Project
from detection.models.tenants import ProjectKey, TenantModel


def new_what_if_id() -> str:
    """Return a new opaque id with its type prefix, 100 random bits."""
    return "wif_" + "".join(secrets.choice(PUBLIC_ID_ALPHABET) for _ in range(20))


class WhatIfState(models.TextChoices):
    """State of a what-if. If its worker dies, another worker continues it."""

    WAITING = "waiting", "Waiting"
    RUNNING = "running", "Running"
    FINISHED = "finished", "Finished"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


OPEN_STATES = (WhatIfState.WAITING, WhatIfState.RUNNING)


class WhatIf(TenantModel):
    """A replay of the sessions of the last days under the current policy and under a changed one.

    Sessions are replayed newest first. `cursor` is the id of the session replayed last, and moves in the statement that
    stores what was found in it, so that a piece of work counts once however often workers die. `finished_at` is empty
    exactly while the what-if is waiting or running.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="what_ifs")
    public_id = models.CharField(max_length=32, default=new_what_if_id, editable=False)
    change = models.JSONField(help_text="The scope, and what its override or tool rule would contain.")
    days = models.PositiveSmallIntegerField()
    since = models.DateTimeField(help_text="Incidents that were opened earlier do not count.")
    created_by = models.CharField(max_length=150)

    state = models.CharField(max_length=10, choices=WhatIfState.choices, default=WhatIfState.WAITING)
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
    error = models.CharField(max_length=500, blank=True, default="")
    error_code = models.CharField(max_length=32, blank=True, default="")

    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    finished_by = models.CharField(max_length=150, blank=True, default="", help_text="Who cancelled it.")

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="what_if_id"),
            models.CheckConstraint(
                name="what_if_open_or_finished",
                condition=models.Q(state__in=("waiting", "running"), finished_at__isnull=True)
                | models.Q(state__in=("finished", "failed", "cancelled"), finished_at__isnull=False),
            ),
            models.CheckConstraint(
                name="what_if_failed_with_error", condition=models.Q(state="failed") ^ models.Q(error="")
            ),
        )
        indexes = (
            models.Index(fields=("project", "-created_at", "-id"), name="what_if_newest"),
            models.Index(
                fields=("id",), name="what_if_open", condition=models.Q(state__in=("waiting", "running"))
            ),
        )

    def __str__(self) -> str:
        return f"{self.public_id}: {self.change.get('scope')}, {self.state}"

    @property
    def is_open(self) -> bool:
        """Whether it is waiting or running."""
        return self.state in OPEN_STATES

    @property
    def share(self) -> float:
        """Share of the calls that has been replayed, from 0 to 1."""
        if self.state == WhatIfState.FINISHED:
            return 1.0
        return min(1.0, self.done_calls / self.calls) if self.calls else 0.0
