"""Erasures: requests to remove a session, or all sessions of an agent, with what was removed."""

from __future__ import annotations

from functools import partial

from django.db import models
from django.db.models.functions import Now

from detection.engine.identity import Keyer
from detection.models.projects import Project
from detection.models.public_ids import new_id
from detection.models.tenants import ProjectKey, TenantModel


class ErasureOf(models.TextChoices):
    """What an erasure removes."""

    SESSION = "session", "Session"
    AGENT = "agent", "All sessions of an agent"


_DOMAINS = {ErasureOf.SESSION: b"erased-session", ErasureOf.AGENT: b"erased-agent"}


def name_digest(project: Project, of: str, name: str) -> str:
    """Return the digest under which the receipt of an erased name is found; 32 hexadecimal digits."""
    return Keyer(bytes(project.digest_secret)).digest(_DOMAINS[ErasureOf(of)], name.encode())


MAX_ATTEMPTS = 8
"""Attempts without progress after which an erasure has failed."""


class Erasure(TenantModel):
    """A request to erase and, once `finished_at` is set, its receipt.

    `name` is needed until the work is done and empty afterwards; `name_digest` stays, so that anyone who knows the name
    can find the receipt, but the name cannot be read from it. `attempts` counts those that an error has ended since the
    last progress; after `MAX_ATTEMPTS` no worker tries again until someone requests the same erasure once more.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="erasures")
    public_id = models.CharField(max_length=32, default=partial(new_id, "era_"), editable=False)
    of = models.CharField(max_length=8, choices=ErasureOf.choices)
    name = models.CharField(max_length=256, blank=True, default="")
    name_digest = models.CharField(max_length=32, help_text="Digest of the name under the project's secret.")
    requested_by = models.CharField(max_length=150)
    requested_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    due_at = models.DateTimeField(db_default=Now(), help_text="No worker tries earlier.")
    error = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="What ended the last attempt."
    )
    removed = models.JSONField(default=dict, help_text="How many rows of each kind.")

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="erasure_id"),
            models.CheckConstraint(name="erasure_known", condition=models.Q(of__in=("session", "agent"))),
            models.CheckConstraint(
                name="erasure_forgets_the_name",
                condition=models.Q(finished_at=None) ^ models.Q(name=""),
            ),
        )
        indexes = (
            models.Index(fields=("project", "-id"), name="erasure_newest"),
            models.Index(fields=("id",), name="erasure_open", condition=models.Q(finished_at=None)),
        )

    def __str__(self) -> str:
        return f"{self.public_id}: {self.of}"

    @property
    def state(self) -> str:
        """Whether it is ``waiting``, ``finished`` or ``failed``."""
        if self.finished_at is not None:
            return "finished"
        return "failed" if self.attempts >= MAX_ATTEMPTS else "waiting"
