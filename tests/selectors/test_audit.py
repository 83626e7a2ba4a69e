"""The audit as a list: changes of the project and, on request, of the server, by cursor."""

from datetime import timedelta

import pytest
from django.utils import timezone

from detection.filtering.time_ranges import TimeRange
from detection.models import AuditEntry, Project
from detection.selectors.audit import ALL_ENTRIES, list_entries
from detection.selectors.filters import list_query
from detection.selectors.lists import AUDIT
from detection.selectors.pages import all_rows


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


def walk(project, query, limit, *, with_server=True):
    seen, cursor = [], ""
    while cursor is not None:
        page = list_entries(project.pk, query, cursor, limit, with_server=with_server)
        assert len(page.items) <= limit
        seen += [row.pk for row in page.items]
        cursor = page.next_cursor
    return seen


def in_order(entries):
    return [row.pk for row in sorted(entries, key=lambda row: (row.at, row.pk), reverse=True)]


@pytest.mark.parametrize("limit", [1, 2, 5, 24, 50])
def test_pages_cover_the_project_and_the_server_once_and_in_order(project, entries, limit):
    wanted = in_order(row for row in entries if row.project_id in (project.pk, None))
    assert walk(project, ALL_ENTRIES, limit) == wanted
    oldest_first = list_query(AUDIT, sort="time")
    assert walk(project, oldest_first, limit) == wanted[::-1]
    read = lambda *page: list_entries(project.pk, ALL_ENTRIES, *page, with_server=True)  # noqa: E731
    assert [row.pk for row in all_rows(read, 1000)] == wanted


def test_server_changes_are_excluded_by_default(project, entries):
    assert walk(project, ALL_ENTRIES, 5, with_server=False) == in_order(
        row for row in entries if row.project_id == project.pk
    )


def test_filters_hold_for_the_server_s_changes_too(project, entries):
    span = TimeRange("", entries[30].at, entries[0].at)
    query = list_query(AUDIT, "actor:anna action:key,key.*", range=span)
    wanted = in_order(
        row
        for row in entries
        if row.project_id in (project.pk, None)
        and row.actor == "anna"
        and row.action in ("key", "key.create")
        and entries[30].at <= row.at < entries[0].at
    )
    assert wanted
    assert walk(project, query, 2) == wanted
