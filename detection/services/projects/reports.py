"""Links to the report of a week: expiring and revocable, made by people, and on Mondays for the routes that ask."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from detection.filtering.time_ranges import TimeRange
from detection.models import AlertEventType, AlertRoute, Project, Report
from detection.models.alert_facts import ReportFacts
from detection.selectors.filters import ListQuery, list_query
from detection.selectors.insights import before_of
from detection.selectors.lists import STATISTICS
from detection.selectors.statistics import Numbers, grouped
from detection.services import audit, keys
from detection.services.alerting import outbox
from detection.services.audit import Actor
from detection.services.errors import Conflict, NotFound, found
from detection.services.report_links import PREFIX, opens, token_of

log = structlog.get_logger(__name__)

MAX_OPEN: Final = 100
"""Links of a project that can still be opened, as of invitations."""
LIFETIME, SPAN = timedelta(days=30), timedelta(days=7)
MONDAY: Final = 0


def open_reports(project_id: int) -> Any:
    """Return the reports of a project that can be opened, the newest first."""
    rows = Report.objects.filter(project_id=project_id, revoked_at=None, expires_at__gt=timezone.now())
    return rows.select_related("created_by")


def create_report(project_id: int, actor: Actor) -> tuple[Report, str]:
    """Create the report of the last seven whole days, in UTC.

    Returns
    -------
    tuple
        The row and the token of the link.

    Raises
    ------
    Conflict
        ``too_many``.
    """
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=project_id)
        if open_reports(project_id).count() >= MAX_OPEN:
            raise Conflict(f"A project can have at most {MAX_OPEN} links to reports.", code="too_many")
        row = _create(project_id, timezone.now(), actor)
    return row, token_of(row.public_id)


def send_weekly() -> int:
    """Make the report of the week that ended last night, for each project with a route that asks for it.

    Nothing happens on other days than Mondays, in UTC. A report is made once, however often this runs.

    Returns
    -------
    int
        How many reports were made.
    """
    now, made = timezone.now(), 0
    if now.weekday() != MONDAY:
        return 0
    for project_id in Project.objects.filter(archived_at=None).values_list("pk", flat=True):
        try:
            made += weekly_routes(project_id).exists() and _send_weekly(project_id, now)
        except Exception:
            log.exception("weekly_report_failed", project_id=project_id)  # the next hour tries again
    return made


def _send_weekly(project_id: int, now: datetime) -> bool:
    try:
        with transaction.atomic():
            row = _create(project_id, now, audit.SYSTEM, is_weekly=True)
            outbox.record_report(project_id, counted(row))
    except IntegrityError:
        return False  # this week has its report
    return True


def _create(project_id: int, now: datetime, actor: Actor, *, is_weekly: bool = False) -> Report:
    row = _of_week(project_id, now)
    row.public_id = keys.new_token(PREFIX)[0]
    row.created_by_id, row.expires_at, row.is_weekly = actor.user_id, now + LIFETIME, is_weekly
    row.save()
    audit.record(actor, "report.create", row.public_id, project_id=project_id, after={"days": LIFETIME.days})
    return row


def _of_week(project_id: int, now: datetime) -> Report:
    """Return an unsaved report of the last seven whole days, as the chart has them, in UTC."""
    end = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return Report(project_id=project_id, starts_at=end - SPAN, ends_at=end)


def of_today(project_id: int) -> ReportFacts:
    """Return the figures that a report would have today; makes none."""
    return counted(_of_week(project_id, timezone.now()))


def weekly_routes(project_id: int) -> QuerySet[AlertRoute]:
    """Return the routes of a project that are in use and ask for the report of a week."""
    return AlertRoute.objects.filter(
        project_id=project_id, is_enabled=True, event_types__contains=[AlertEventType.WEEKLY_REPORT]
    )


def query_of(report: Report) -> ListQuery:
    """Return the query of the report's time, the most expensive first."""
    span = TimeRange("", report.starts_at, report.ends_at)
    return list_query(STATISTICS, "", range=span, sort="-cost", zone=UTC)


def counted(report: Report) -> ReportFacts:
    """Count the figures of a report that a message names; a few queries over a fortnight."""
    query = query_of(report)
    now, before = (grouped(report.project_id, one, "day").total for one in (query, before_of(query)))
    return figures_of(report, now, before)


def figures_of(report: Report, now: Numbers, before: Numbers) -> ReportFacts:
    """Return the figures of a report from the statistics of its week and of the one before."""
    return {
        "id": report.public_id,
        "ends_at": report.ends_at.isoformat(),
        "loops": now.loops_found,
        "loop_cost_usd": now.loop_cost_usd,
        "loop_cost_usd_before": before.loop_cost_usd,
        "calls_blocked": now.loop_calls_blocked,
    }


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
            and opens(token, row.public_id)
            and row.revoked_at is None
            and row.expires_at > timezone.now()
            and row.project.archived_at is None
        ):
            return row
    raise NotFound("This link was revoked or has expired. Ask for a new one.")
