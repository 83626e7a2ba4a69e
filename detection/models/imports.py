"""Imports of uploaded transcripts, with their progress and what they found, and what their costs follow from."""

from __future__ import annotations

from functools import partial

from django.contrib.postgres.fields import ArrayField
from django.db import models

from detection.integrations.labels import Labels
from detection.models.incidents import Incident
from detection.models.jobs import Job, job_constraints, job_indexes
from detection.models.projects import Project
from detection.models.public_ids import new_id
from detection.models.sessions import Session
from detection.models.tenants import ProjectKey, TenantForeignKey, TenantModel

LONGEST_SHOWN = 60
"""Length of names in the summary of an import."""


class TranscriptImport(Job):
    """An import of uploaded files: first all files are checked, then their sessions are stored.

    `done_bytes` counts to `total_bytes` twice, once for each. Its files exist until it ends. `summary` is written once,
    with what is stored by then.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="imports")
    public_id = models.CharField(max_length=32, default=partial(new_id, "imp_"), editable=False)
    kind = models.CharField(max_length=16, help_text="Form of the record, such as claude-code.")
    files = models.JSONField(help_text="Name and size in bytes of each file.")
    total_bytes = models.BigIntegerField()
    usd_per_million_input = models.FloatField(null=True)
    usd_per_million_output = models.FloatField(null=True)
    tags = ArrayField(models.CharField(max_length=64), default=list, help_text="For its sessions.")
    metadata: models.JSONField[dict[str, str], dict[str, str]] = models.JSONField(
        default=dict, help_text="For its sessions."
    )

    is_checked = models.BooleanField(default=False)
    starts = models.IntegerField(default=0, help_text="How many workers have started on it.")
    done_bytes = models.BigIntegerField(default=0)
    sessions = models.IntegerField(default=0, help_text="Sessions found by the check.")
    done_sessions = models.IntegerField(default=0)
    events = models.BigIntegerField(default=0, help_text="Events that are new.")
    skipped = models.JSONField(default=list, help_text="What was passed over, one sentence each.")
    summary = models.JSONField(null=True)

    class Meta(Job.Meta):
        constraints = (
            models.UniqueConstraint(fields=("project", "public_id"), name="transcript_import_id"),
            *job_constraints("import"),
        )
        indexes = job_indexes("import")

    def __str__(self) -> str:
        return f"{self.public_id}: {self.kind}, {self.state}"

    @property
    def labels(self) -> Labels:
        """Tags and metadata for its sessions."""
        return Labels(tuple(self.tags), self.metadata)

    @property
    def prices(self) -> tuple[float, float] | None:
        """USD per million tokens of input and output; None if only recorded costs count."""
        if self.usd_per_million_input is None or self.usd_per_million_output is None:
            return None
        return self.usd_per_million_input, self.usd_per_million_output


class ImportedUsage(TenantModel):
    """The tokens of some imported events whose cost follows from the prices of the project, one array for each number.

    One row for each transaction of an import, so that an event takes 20 bytes and the path of other events none.
    `seqs` are the numbers of the events in their session; `input_tokens` include those of the cache.
    """

    pk = models.CompositePrimaryKey("project_id", "session_id", "first_seq")
    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantForeignKey(Session, on_delete=models.CASCADE, related_name="+", db_index=False)
    first_seq = models.IntegerField()
    seqs = ArrayField(models.IntegerField())
    input_tokens = ArrayField(models.IntegerField())
    cached_tokens = ArrayField(models.IntegerField())
    cache_write_tokens = ArrayField(models.IntegerField())
    output_tokens = ArrayField(models.IntegerField())

    def __str__(self) -> str:
        return f"{self.session_id} from {self.first_seq}"


class ImportedLoopCalls(TenantModel):
    """The calls of an imported session that an incident counts: what its cost is the sum of."""

    project = ProjectKey(Project, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    session = TenantForeignKey(Session, on_delete=models.CASCADE, related_name="+")
    incident = TenantForeignKey(Incident, on_delete=models.CASCADE, related_name="+")
    seqs = ArrayField(models.IntegerField())

    def __str__(self) -> str:
        return f"{len(self.seqs)} calls of {self.incident_id}"


class Recalculation(TenantModel):
    """The costs of a project's imported calls are calculated anew, because a price was changed; the newest request.

    A worker goes through the sessions by their ids, up to `cursor`. A new request begins at the first one.
    """

    project = ProjectKey(Project, on_delete=models.CASCADE, related_name="recalculations")
    requested_at = models.DateTimeField()
    cursor = models.BigIntegerField(default=0)
    sessions = models.IntegerField(default=0, help_text="Imported sessions without a cost of their own.")
    done_sessions = models.IntegerField(default=0)
    changed_sessions = models.IntegerField(default=0)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("project",), name="one_recalculation_of_a_project"),)
        indexes = (
            models.Index(fields=("id",), name="recalculation_open", condition=models.Q(finished_at=None)),
        )

    def __str__(self) -> str:
        return f"{self.done_sessions} of {self.sessions} sessions"
