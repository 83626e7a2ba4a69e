"""Incidents: filters, neighbours and exports."""

import pytest
from django.utils import timezone

from detection.filtering.language import FilterError
from detection.selectors.filters import list_query
from detection.selectors.incident_rows import IncidentRow
from detection.selectors.incidents import (
    ALL_INCIDENTS,
    get_incident,
    list_incidents,
    neighbours,
)
from detection.selectors.lists import INCIDENTS
from detection.selectors.pages import all_rows
from detection.selectors.row_fields import document_of
from tests.support.projects import make_project


def found(project, text=""):
    return {row.public_id for row in list_incidents(project.pk, list_query(INCIDENTS, text)).items}


def test_every_filter_narrows_to_what_it_names(project, session, incident):
    one = incident(
        session("s-1"), agent="triage", backend="openai", model="gpt-5", status="done", label="true_loop"
    )
    other = incident(session("s-2"), kind="cycle", tool="a → b")
    foreign = incident(project=make_project())
    for text in (
        "agent:triage", "backend:openai", "model:gpt-5", "is:done", "label:true_loop", "session:s-1", "detector:repeat",
        "tool:search_web", "tool:search_*", "tool:*web", "SEARCH", "tria", "-detector:cycle", '-session:s-2 "arch_w"',
    ):  # fmt: skip
        assert found(project, text) == {one.public_id}, text
    assert found(project, "label:none") == found(project, 'tool:"a → b"') == {other.public_id}
    assert found(project, "detector:cycle,repeat -agent:nobody") == {one.public_id, other.public_id}
    assert found(project, "tool:search%") == found(project, 'tool:"search_*"') == set()
    assert found(project) == {one.public_id, other.public_id}
    assert get_incident(project.pk, foreign.public_id) is None


def test_false_alarms_are_found_by_their_reason(project, session, incident):
    poll = incident(session("s-1"), label="false_alarm", label_reason="poll").public_id
    bare = incident(session("s-2"), label="false_alarm").public_id
    incident(session("s-3"), label="true_loop")
    assert found(project, "reason:poll") == found(project, "-reason:none label:false_alarm") == {poll}
    assert found(project, "reason:none") == {bare}
    assert found(project, "reason:poll,none") == {poll, bare}
    with pytest.raises(FilterError, match="`volatile_argument`"):
        found(project, "reason:nonce")


def test_neighbours_are_the_same_loop_in_other_sessions(project, session, incident):
    here, there = session("s-1"), session("s-2")
    one = incident(here, calls_digest="abc")
    incident(here, calls_digest="abc", status="ended", ended_at=timezone.now())
    incident(there, calls_digest="abc", status="ended", ended_at=timezone.now())
    two = incident(there, calls_digest="abc")
    incident(session("s-3"), calls_digest="other")
    incident(project=make_project(), calls_digest="abc")
    assert [row.public_id for row in neighbours(one)] == [two.public_id]


def test_the_incident_in_hand_is_shown_as_the_list_shows_it(project, session, incident):
    made = incident(session("s-1"), status="done", done_at=timezone.now())
    made.refresh_from_db()
    (listed,) = list_incidents(project.pk).items
    assert document_of(made, IncidentRow) == document_of(listed)
    assert listed.loop_id == made.loop.public_id


def test_an_export_reads_pages_and_stops_at_its_limit(project, incident, django_assert_num_queries):
    made = [incident() for _ in range(5)]
    with django_assert_num_queries(1):
        rows = list(all_rows(lambda *page: list_incidents(project.pk, ALL_INCIDENTS, *page), 3))
    assert [row.public_id for row in rows] == [row.public_id for row in reversed(made)][:3]
