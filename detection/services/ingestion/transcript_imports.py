"""Imports of uploaded transcripts: created and cancelled by people and keys, worked on by workers.

See `import_worker` for the work itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.db import transaction
from django.utils import timezone

from detection.integrations.labels import NO_LABELS, Labels
from detection.models import JobState, Project, TranscriptImport
from detection.models.jobs import OPEN_STATES
from detection.services import audit, jobs
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid
from detection.services.ingestion import import_files
from detection.services.ingestion.run_import import ImportSummary, importer
from detection.services.ingestion.transcript_files import KINDS
from detection.services.keys import PROJECT_ARCHIVED
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

MAX_OPEN: Final = 5
"""Maximum number of waiting and running imports of a project."""
MAX_KEPT: Final = 1_000
"""Maximum number of imports of a project that are kept."""
MAX_USD_PER_MILLION: Final = 100_000
_LONGEST_NAME: Final = 120


@dataclass(frozen=True, slots=True)
class Arrived:
    """A file that has arrived on the disk of `import_files`."""

    name: str
    path: Path


def check_new(project_id: int) -> None:
    """Check that the project may have one more import.

    Raises
    ------
    Conflict
        If the project is archived, or too many are waiting or running.
    """
    if Project.objects.filter(pk=project_id).exclude(archived_at=None).exists():
        raise Conflict(PROJECT_ARCHIVED, code="project_archived")
    rows = TranscriptImport.objects.filter(project_id=project_id)
    if rows.filter(state__in=OPEN_STATES).count() >= MAX_OPEN:
        raise Conflict(
            f"{MAX_OPEN} imports of this project are waiting or running. Wait until one has finished.",
            code="too_many_imports",
        )


def create_import(
    project_id: int,
    actor: Actor,
    *,
    kind: str,
    files: Sequence[Arrived],
    prices: tuple[float, float] | None = None,
    labels: Labels = NO_LABELS,
) -> TranscriptImport:
    """Create an import of files that have arrived, and move them into its folder. A worker finds it within a second.

    Parameters
    ----------
    kind
        One of `KINDS`.
    prices
        USD per million tokens of input and output, for records that have tokens but no costs.
    labels
        Tags and metadata for the sessions that get new events.

    Raises
    ------
    Invalid
        For an unknown kind, no or too many files, an empty file, or prices out of range.
    TooLarge, Conflict
        If the files are too large together, or if too many imports are open.
    """
    if kind not in KINDS:
        raise Invalid(f"`kind` must be one of {', '.join(KINDS)}.", field="kind", code="invalid_value")
    if not files:
        raise Invalid("`files` must contain at least one file.", field="files", code="missing")
    if len(files) > import_files.MAX_FILES:
        raise import_files.too_many()
    for price in prices or ():
        if not math.isfinite(price) or not 0 <= price <= MAX_USD_PER_MILLION:
            raise Invalid(
                f"Prices must be between 0 and {MAX_USD_PER_MILLION:,} USD per million tokens.",
                field="prices",
                code="out_of_range",
            )
    sizes = [(file.name[-_LONGEST_NAME:] or "transcript", file.path.stat().st_size) for file in files]
    for name, size in sizes:
        if not size:
            raise Invalid(f"{name} is empty.", field="files", code="empty_file")
    total = sum(size for _, size in sizes)
    if total > import_files.MAX_UPLOAD_BYTES:
        raise import_files.too_large()
    with transaction.atomic():
        # Locks the project, so that requests at the same time do not exceed the number together.
        project = Project.objects.select_for_update(of=("self",), no_key=True).get(pk=project_id)
        check_new(project_id)
        labels = importer(project).redactor.labels(labels)
        row = TranscriptImport(
            project_id=project_id,
            kind=kind,
            files=[{"name": name, "bytes": size} for name, size in sizes],
            total_bytes=total,
            usd_per_million_input=prices[0] if prices else None,
            usd_per_million_output=prices[1] if prices else None,
            tags=[*labels.tags],
            metadata={**labels.metadata},
            created_by=actor.name[:150],
        )
        import_files.keep(row.public_id, [file.path for file in files])
        try:
            row.save()
            after: dict[str, object] = {"kind": kind, "files": row.files[:10], "bytes": total}
            audit.record(actor, "import.create", row.public_id, project_id=project_id, after=after)
            publish_after_commit(project_id, Hint("import", row.public_id))
        except Exception:
            import_files.remove(row.public_id)
            raise
    return row


def note_import(
    project_id: int,
    actor: Actor,
    *,
    kind: str,
    path: str,
    size: int,
    prices: tuple[float, float] | None,
    labels: Labels,
    events: int,
    skipped: Sequence[str],
    summary: ImportSummary,
) -> TranscriptImport:
    """Store an import that a command has carried out, so that it is listed with those of uploads.

    Parameters
    ----------
    path, size
        The file or folder, and bytes of its transcripts.
    labels, events, skipped, summary
        As `TranscriptImport` has them.
    """
    with transaction.atomic():
        row = TranscriptImport.objects.create(
            project_id=project_id,
            kind=kind,
            files=[{"name": path[-_LONGEST_NAME:], "bytes": size}],
            total_bytes=size,
            usd_per_million_input=prices[0] if prices else None,
            usd_per_million_output=prices[1] if prices else None,
            tags=[*labels.tags],
            metadata={**labels.metadata},
            created_by=actor.name[:150],
            state=JobState.FINISHED,
            is_checked=True,
            done_bytes=size,
            sessions=summary.sessions,
            done_sessions=summary.sessions,
            events=events,
            skipped=list(skipped),
            summary=dataclasses.asdict(summary),
            finished_at=timezone.now(),
        )
        audit.record(
            actor,
            "import.create",
            row.public_id,
            project_id=project_id,
            after={"kind": kind, "files": row.files, "bytes": size},
        )
        publish_after_commit(project_id, Hint("import", row.public_id))
    return row


def cancel_import(project_id: int, public_id: str, actor: Actor) -> TranscriptImport:
    """Cancel an import. What has been stored is kept, and its sessions are ended.

    Raises
    ------
    NotFound, Conflict
        If there is none, or if it has finished.
    """
    with transaction.atomic():
        row = jobs.cancel(TranscriptImport.objects.all(), "import", project_id, public_id, actor)
        transaction.on_commit(lambda: import_files.remove(public_id), robust=True)
    return row


def trim() -> None:
    """Remove the oldest imports above the number that is kept, and files that belong to none. For housekeeping."""
    for project_id in TranscriptImport.objects.values_list("project_id", flat=True).distinct():
        rows = TranscriptImport.objects.filter(project_id=project_id).order_by("-pk")
        last = rows.values_list("pk", flat=True)[MAX_KEPT : MAX_KEPT + 1].first()
        if last is not None:
            rows.filter(pk__lte=last, finished_at__isnull=False).delete()
    open_rows = TranscriptImport.objects.filter(finished_at__isnull=True)
    import_files.remove_left_over(open_rows.values_list("public_id", flat=True))
