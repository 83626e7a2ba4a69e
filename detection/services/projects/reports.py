"""Links to the report of a week: expiring and revocable. Only `create_report` returns the token."""

from __future__ import annotations

import hmac
from datetime import timedelta
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from detection.models import Project, Report
from detection.services import audit, keys
from detection.services.audit import Actor
from detection.services.errors import Conflict, NotFound, found

PREFIX: Final = "lgr_"
MAX_OPEN: Final = 100
"""Links of a project that can still be opened, as of invitations."""
LIFETIME, SPAN = timedelta(days=30), timedelta(days=7)


def open_reports(project_id: int) -> Any:
    """Return the reports of a project that can be opened, the newest first."""
    rows = Report.objects.filter(project_id=project_id, revoked_at=None, expires_at__gt=timezone.now())
    return rows.select_related("created_by")


def create_report(project_id: int, actor: Actor) -> tuple[Report, str]:
    """Create the report of the last seven whole days, in UTC.

    Returns
    -------
    tuple
        The row and the token of the link, which is not stored and cannot be shown again.

    Raises
    ------
    Conflict
        ``too_many``.
    """
    public_id, token = keys.new_token(PREFIX)
    # Whole days, as the chart has them: seven that are over, in UTC.
    now = timezone.now()
    end = now.replace(hour=0, minute=0, second=0, microsecond=0)
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=project_id)
        if open_reports(project_id).count() >= MAX_OPEN:
            raise Conflict(f"A project can have at most {MAX_OPEN} links to reports.", code="too_many")
        row = Report.objects.create(
            project_id=project_id,
            public_id=public_id,
            digest=keys.digest_of(token),
            starts_at=end - SPAN,
            ends_at=end,
            created_by_id=actor.user_id,
            expires_at=now + LIFETIME,
        )
        audit.record(actor, "report.create", public_id, project_id=project_id, after={"days": LIFETIME.days})
    return row, token


@transaction.atomic
def revoke_report(project_id: int, public_id: str, actor: Actor) -> Report:
    """End a link at once; revoking twice changes nothing.

    Raises
    ------
    NotFound
    """
    row = found(Report.objects.select_for_update().filter(project_id=project_id, public_id=public_id).first())
    if row.revoked_at is None:
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
        audit.record(actor, "report.revoke", public_id, project_id=project_id)
    return row


def find_report(token: str) -> Report:
    """Return the report of a token.

    Raises
    ------
    NotFound
        If it is unknown, revoked or expired, or its project is archived.
    """
    if token.isascii() and keys.looks_like_key(token, PREFIX):
        rows = Report.objects.select_related("project").filter(public_id=token[len(PREFIX) :][:10])
        row = rows.first()
        if (
            row is not None
            and hmac.compare_digest(row.digest, keys.digest_of(token))
            and row.revoked_at is None
            and row.expires_at > timezone.now()
            and row.project.archived_at is None
        ):
            return row
    raise NotFound("This link was revoked or has expired. Ask for a new one.")
