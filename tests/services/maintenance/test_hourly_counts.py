"""Calls are counted once, whenever and however often the counting runs; incidents answer for the rest."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from detection.filtering.time_ranges import TimeRange
from detection.models import CallCount, CountingCursor, Incident, Session, SessionTool
from detection.selectors.filters import list_query
from detection.selectors.lists import STATISTICS
from detection.selectors.metric_totals import totals_by_project
from detection.selectors.statistics import statistics
from detection.services.audit import Actor
from detection.services.maintenance.hourly_counts import count_calls
from detection.services.retention import removal
from detection.services.sessions.evaluation import evaluate
from tests.support.agents import Agent
from tests.support.alerts import make_incident

ANA = Actor("ana")


def span(text=""):
    now = timezone.now()
    day = TimeRange("", now - timedelta(days=1), now + timedelta(hours=1))
    return list_query(STATISTICS, text, range=day)


def totals(project):
    return statistics(project.pk, span()).total


def test_calls_are_counted_once_however_often_it_runs(agent, project):
    for _ in range(6):
        agent.asks()
    assert totals(project).checks == 0
    count_calls()
    count_calls()
    first = totals(project)
    assert (first.checks, first.blocked > 0) == (6, True)
    agent.asks(agent.call("read_file", '{"path": "a"}'))
    count_calls()
    assert totals(project).checks == 7
    assert totals(project).blocked == first.blocked


def test_what_is_not_evaluated_yet_is_counted_later(agent, project):
    agent.posts(agent.call(), agent.call())
    count_calls()
    assert totals(project).checks == 0
    evaluate(Session.objects.get().key)
    count_calls()
    assert totals(project).checks == 2


def test_a_backlog_is_counted_in_portions_and_whole(principal, project, monkeypatch):
    for name in ("a", "b", "c"):
        agent = Agent(principal, name)
        for number in range(7):
            agent.asks(agent.call("read_file", f'{{"path": "{number}"}}'))
    monkeypatch.setattr("detection.services.maintenance.hourly_counts.BATCH_EVENTS", 4)
    count_calls()
    assert totals(project).checks == 21
    assert CountingCursor.objects.get().counted_at is not None


@pytest.mark.promise("REL-22")
@pytest.mark.servers
def test_a_session_touched_by_a_late_transaction_is_not_missed(agent, project):
    """The cursor stays behind every transaction that was open when it was read."""
    agent.asks()
    count_calls()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        assert CountingCursor.objects.get().seen_xid <= cursor.fetchone()[0]


def test_counts_come_apart_by_tool_model_and_hour(principal, project):
    Agent(principal, "a", backend="openai", model="gpt-5").asks()
    other = Agent(principal, "b", backend="anthropic", model="claude")
    other.asks(other.call("read_file", '{"path": "a"}'), other.call("read_file", '{"path": "b"}'))
    count_calls()
    tools = statistics(project.pk, span(), by="tool").rows
    assert {row.key: row.numbers.checks for row in tools} == {"read_file": 2, "search_web": 1}
    models = statistics(project.pk, span(), by="model").rows
    assert {row.key: row.numbers.checks for row in models} == {"claude": 2, "gpt-5": 1}
    hours = statistics(project.pk, span(), by="hour").rows
    assert sum(row.numbers.checks for row in hours) == 3
    assert hours[0].key.endswith(":00:00Z")


@pytest.mark.servers
def test_findings_labels_confidence_and_recovery_are_counted_by_detector(project):
    evidence = {"reactions": {"warn": {"changed": 1, "went_on": 3}, "block": {"ended": 1}}}
    make_incident(
        project,
        label="true_loop",
        recovered=True,
        confidence=0.8,
        detections=3,
        evidence=evidence,
        was_guarded=True,
    )
    make_incident(
        project, label="false_alarm", recovered=False, confidence=0.4, calls_digest="b", was_guarded=True
    )
    make_incident(project, kind="cycle", calls_digest="c", cost_usd=2, counted_calls=9, calls_blocked=4)
    answer = statistics(project.pk, span(), by="kind")
    by_kind = {row.key: row.numbers for row in answer.rows}
    repeat = by_kind["repeat"]
    assert (repeat.incidents, repeat.findings, repeat.true_loops, repeat.false_alarms) == (2, 4, 1, 1)
    assert repeat.average_confidence == pytest.approx(0.6)
    assert (repeat.precision, repeat.recovery) == (0.5, 0.5)
    assert repeat.checks is None
    assert (by_kind["cycle"].loop_cost_usd, by_kind["cycle"].loop_calls_blocked) == (2.0, 4)
    assert [(row.rung, row.changed, row.went_on, row.ended) for row in answer.after_reactions] == [
        ("warn", 1, 3, 0),
        ("block", 0, 0, 1),
    ]


def test_other_projects_and_other_times_stay_out(agent, project):
    agent.asks()
    make_incident(project)
    count_calls()
    past = timezone.now() - timedelta(days=40)
    CallCount.objects.update(hour=past)
    Incident.objects.update(opened_at=past)
    assert totals(project).checks == 0
    assert totals(project).incidents == 0
    long_ago = TimeRange("", past - timedelta(days=1), timezone.now())
    assert statistics(project.pk, list_query(STATISTICS, range=long_ago)).total.checks == 1
    assert statistics(project.pk + 1, list_query(STATISTICS, range=long_ago)).total.checks == 0


def test_a_filter_holds_for_calls_as_far_as_they_have_its_fields(agent, project):
    agent.asks()
    make_incident(project, agent="triage")
    count_calls()

    def counted(text):
        total = statistics(project.pk, span(text)).total
        return total.checks, total.incidents

    assert counted("tool:search_web") == counted("-tool:bash") == (1, 1)
    assert counted("tool:bash") == (0, 0)
    assert counted("agent:triage") == counted("detector:repeat triage") == (None, 1)
    assert counted("agent:nobody") == (None, 0)


def test_the_demo_goes_with_its_numbers(project, agent):
    agent.asks()
    count_calls()
    Session.objects.update(is_demo=True)
    CallCount.objects.update(is_demo=True)
    assert totals_by_project() == []
    removal.remove_demo(project.pk, ANA)
    assert totals(project).checks == 0


def test_sessions_that_are_gone_leave_their_counts(project, agent):
    agent.asks()
    count_calls()
    assert [*SessionTool.objects.values_list("tool", "calls")] == [("search_web", 1)]
    session = Session.objects.get()
    removal.delete_sessions(session.project_id, [session.pk])
    count_calls()
    assert totals(project).checks == 1
    assert not SessionTool.objects.exists()
