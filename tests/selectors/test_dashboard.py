"""Figures of the live page: counted by state, and the few that are looked for are found by an index of their own."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from detection.selectors import dashboard
from detection.selectors.filters import list_query
from detection.selectors.lists import SESSIONS
from detection.selectors.sessions import list_sessions


def test_states_are_counted_with_the_silent_ones_apart(project, session):
    now = timezone.now()
    for state in ("running", "held", "stopped", "stopping", "ended"):
        session(state=state)
    for state in ("looping", "looping", "stop_unenforced", "still_calling", "stopped"):
        session(state=state, last_loop_call_at=now)
    session(state="looping", last_loop_call_at=now - timedelta(seconds=121))
    session(state="stop_unenforced", last_loop_call_at=now - timedelta(seconds=121))
    for state in ("running", "running", "running", "ended"):
        session(state=state, age_seconds=601)
    session(state="looping", age_seconds=3601, last_loop_call_at=now - timedelta(seconds=3601))
    assert dashboard.state_counts(project.pk) == dashboard.StateCounts(
        all=17, running=1, looping=2, silent=1, held=1, stopping=1, stopped=2, calls_blocked=0,
        stop_unenforced=2, still_calling=1, idle=3, ended=3, looping_now=4, in_loop=7, is_capped=False,
    )  # fmt: skip


def test_in_a_large_project_the_newest_sessions_are_counted_and_the_states_at_work_exactly(
    project, session, monkeypatch
):
    now = timezone.now()
    session(state="stopped", age_seconds=700)
    session(state="looping", age_seconds=3, last_loop_call_at=now)
    session(state="looping", age_seconds=700, last_loop_call_at=now - timedelta(seconds=700))
    session(state="ended", age_seconds=700)
    session(age_seconds=700)
    for _ in range(4):
        session()
    monkeypatch.setattr(dashboard, "COUNTED_SESSIONS", 3)
    counted = dashboard.state_counts(project.pk)
    assert (counted.all, counted.idle, counted.ended, counted.is_capped) == (3, 0, 0, True)
    assert (counted.running, counted.stopped, counted.looping, counted.silent) == (4, 1, 1, 1)
    assert (counted.looping_now, counted.in_loop) == (1, 2)


@pytest.mark.one_database("reads a plan")
@pytest.mark.parametrize(
    ("index", "look"),
    [
        ("session_remarkable", lambda project: list_sessions(project.pk, list_query(SESSIONS, "is:looping"))),
        ("session_remarkable", lambda project: list_sessions(project.pk, list_query(SESSIONS, "is:stopped"))),
        ("session_remarkable", lambda project: dashboard.looping_sessions(project.pk)),
        ("session_of_demo", lambda project: dashboard.has_demo(project.pk)),
        ("session_of_demo", lambda project: list_sessions(project.pk, list_query(SESSIONS, "demo:yes"))),
        ("incident_of_demo", lambda project: dashboard.has_demo(project.pk)),
    ],
)
def test_what_is_rare_is_looked_for_where_only_the_rare_are(
    project, session, incident, django_assert_max_num_queries, index, look
):
    for _ in range(300):
        incident(session(state="ended"))
    with connection.cursor() as db:
        db.execute("ANALYZE detection_session, detection_incident")
        db.execute("SET LOCAL enable_seqscan = off")
    with django_assert_max_num_queries(10) as asked:
        look(project)
    plans = []
    with connection.cursor() as db:
        for query in asked.captured_queries:
            if query["sql"].startswith("SELECT"):
                db.execute("EXPLAIN " + query["sql"])
                plans += [row[0] for row in db.fetchall()]
    assert index in "\n".join(plans)
