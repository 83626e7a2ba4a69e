"""The audit as a list: changes of the project and, on request, of the server, by cursor."""

from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import AuditEntry, Project
from detection.selectors.audit import AuditFilters, export_entries, list_entries

pytestmark = pytest.mark.servers

WITH_SERVER = AuditFilters(with_server=True)


@pytest.fixture
def entries(project):
    """Of the project, the server and another project by turns, some at the same moment."""
    other, now = Project.objects.create(slug="other", name="Other"), timezone.now()
    owners = (project.pk, None, other.pk)
    return AuditEntry.objects.bulk_create(
        AuditEntry(
            project_id=owners[n % 3],
            at=now - timedelta(seconds=n // 6),
            actor="anna" if n % 2 else "system",
            action=("key.create", "key", "session.stop")[n % 3 if n % 5 else 2],
            subject=f"s-{n}",
        )
        for n in range(36)
    )


def walk(project, filters, limit):
    seen, cursor = [], ""
    while cursor is not None:
        page = list_entries(project.pk, filters, cursor, limit)
        assert len(page.items) <= limit
        seen += [row.pk for row in page.items]
        cursor = page.next_cursor
    return seen


def in_order(entries):
    return [row.pk for row in sorted(entries, key=lambda row: (row.at, row.pk), reverse=True)]


@pytest.mark.parametrize("limit", [1, 2, 5, 24, 50])
def test_pages_cover_the_project_and_the_server_once_and_in_order(project, entries, limit):
    wanted = in_order(row for row in entries if row.project_id in (project.pk, None))
    assert walk(project, WITH_SERVER, limit) == wanted
    assert [row.pk for row in export_entries(project.pk, WITH_SERVER, 1000)] == wanted


def test_server_changes_are_excluded_by_default(project, entries):
    assert walk(project, AuditFilters(), 5) == in_order(
        row for row in entries if row.project_id == project.pk
    )


def test_filters_hold_for_the_server_s_changes_too(project, entries):
    filters = AuditFilters(
        with_server=True, actor="anna", action="key", start=entries[30].at, end=entries[0].at
    )
    wanted = in_order(
        row
        for row in entries
        if row.project_id in (project.pk, None)
        and row.actor == "anna"
        and row.action in ("key", "key.create")
        and entries[30].at <= row.at < entries[0].at
    )
    assert wanted
    assert walk(project, filters, 2) == wanted
