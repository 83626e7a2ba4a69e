"""Incidents: filters, counts, neighbours and exports."""

import pytest

from detection.selectors.incidents import (
    STATUSES,
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


def test_counts_and_the_list_agree_under_every_filter(project, incident):
    for status in ("open", "open", "acknowledged", "snoozed", "ended", "resolved"):
        for agent in ("triage", "coder"):
            incident(status=status, agent=agent)
    incident(status="ended", label="false_alarm", agent="coder", tool="grep")
    for filters in (
        {},
        {"agent": "coder"},
        {"agent": "coder", "tool": "grep"},
        {"q": "TRI"},
        {"kind": "cycle"},
    ):
        counted = counts(project.pk, IncidentFilters(**filters))
        for status in STATUSES:
            assert getattr(counted, status) == len(found(project, status=status, **filters)), filters
        assert counted.not_a_loop == len(found(project, label="false_alarm", **filters))
        assert counted.all == len(found(project, **filters))
        assert not counted.is_capped


def test_among_many_incidents_the_open_ones_are_counted_exactly(project, incident, monkeypatch):
    from detection.selectors import incidents

    incident(status="open")
    for _ in range(4):
        incident(status="ended")
    monkeypatch.setattr(incidents, "COUNTED_INCIDENTS", 3)
    counted = counts(project.pk)
    assert (counted.open, counted.ended, counted.all, counted.is_capped) == (1, 3, 3, True)


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


def test_an_export_reads_pages_and_stops_at_its_limit(project, incident, django_assert_num_queries):
    made = [incident() for _ in range(5)]
    with django_assert_num_queries(1):
        rows = list(export_incidents(project.pk, IncidentFilters(), 3))
    assert [row.public_id for row in rows] == [row.public_id for row in reversed(made)][:3]
