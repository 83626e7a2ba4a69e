"""Incidents: filters, counts, neighbours and exports."""

import pytest

from detection.selectors.incidents import (
    IncidentFilters,
    counts,
    export_incidents,
    get_incident,
    list_incidents,
    neighbours,
    row_of,
)
from tests.support.projects import make_member, make_project

pytestmark = pytest.mark.servers


def found(project, **filters):
    return {row.public_id for row in list_incidents(project.pk, IncidentFilters(**filters)).items}


def test_every_filter_narrows_to_what_it_names(project, session, incident):
    one = incident(
        session("s-1"), agent="triage", backend="openai", model="gpt-5", status="resolved", label="true_loop"
    )
    other = incident(session("s-2"), kind="cycle", tool="a → b")
    foreign = incident(project=make_project())
    for filters in (
        {"agent": "triage"}, {"backend": "openai"}, {"model": "gpt-5"}, {"status": "resolved"}, {"label": "true_loop"},
        {"session": "s-1"}, {"kind": "repeat"}, {"tool": "search_web"}, {"q": "SEARCH"}, {"q": "tria"},
    ):  # fmt: skip
        assert found(project, **filters) == {one.public_id}, filters
    assert found(project, label="none") == {other.public_id}
    assert found(project) == {one.public_id, other.public_id}
    assert get_incident(project.pk, foreign.public_id) is None


def test_counts_name_every_status(project, incident):
    incident()
    incident(status="resolved")
    incident(status="resolved")
    assert counts(project.pk) == {"open": 1, "acknowledged": 0, "snoozed": 0, "resolved": 2}


def test_neighbours_are_the_same_loop_elsewhere(project, session, incident):
    one = incident(session("s-1"), loop_id="abc")
    two = incident(session("s-2"), loop_id="abc")
    incident(session("s-3"), loop_id="other")
    incident(project=make_project(), loop_id="abc")
    assert [row.public_id for row in neighbours(one)] == [two.public_id]


def test_the_row_in_hand_equals_the_row_of_the_list(project, session, incident):
    made = incident(
        session("s-1"), acknowledged_by=make_member(project, username="ana"), status="acknowledged"
    )
    made.refresh_from_db()
    (listed,) = list_incidents(project.pk).items
    assert row_of(made) == listed
    assert listed.acknowledged_by == "ana"


def test_an_export_goes_through_pages_and_stops_where_asked(project, incident, django_assert_num_queries):
    made = [incident() for _ in range(5)]
    with django_assert_num_queries(1):
        rows = list(export_incidents(project.pk, IncidentFilters(), 3))
    assert [row.public_id for row in rows] == [row.public_id for row in reversed(made)][:3]
