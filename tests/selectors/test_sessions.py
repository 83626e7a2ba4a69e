"""Lists by cursor, calls with their results, and changes that are never missed."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from detection import clock
from detection.models import Event, Session
from detection.selectors import session_runs
from detection.selectors.filters import list_query
from detection.selectors.lists import SESSIONS
from detection.selectors.pages import BadCursor, all_rows
from detection.selectors.sessions import (
    ALL_SESSIONS,
    calls_cursor,
    changed_since,
    get_session,
    list_sessions,
    session_calls,
)
from tests.support.patience import PATIENCE_SECONDS
from tests.support.threads import in_thread


def walk(project, limit, text="", sort=""):
    seen, cursor = [], ""
    while cursor is not None:
        page = list_sessions(project.pk, list_query(SESSIONS, text, sort=sort), cursor, limit)
        seen += [row.external_id for row in page.items]
        cursor = page.next_cursor
    return seen


def test_a_search_that_stops_at_its_hits_loses_none(session, monkeypatch):
    monkeypatch.setattr(session_runs, "MAX_HITS", 3)
    monkeypatch.setattr(session_runs, "SEARCH_CHUNK", 5)
    one = session()
    at = timezone.now()
    Event.objects.bulk_create(
        Event(session=one, seq=seq, type="call", tool="needle", call_id=f"c{seq}", received_at=at)
        for seq in range(1, 13)
    )
    one.last_seq = 12
    found: list[int] = []
    after, is_complete = 0, False
    while not is_complete:
        hits = session_runs.search_calls(one, "needle", after_seq=after)
        found, after, is_complete = [*found, *hits.seqs], hits.searched_up_to, hits.is_complete
    assert found == [*range(1, 13)]


@pytest.mark.parametrize("sort", ["-rate", "rate", "-state", "state"])
def test_a_file_has_each_session_once_however_slowly_it_is_read(project, session, monkeypatch, sort):
    made = [session() for _ in range(6)]
    for calls, row in enumerate(made, 1):
        Session.objects.filter(pk=row.pk).update(call_count=calls, state="ended" if calls > 3 else "running")
    query = list_query(SESSIONS, sort=sort)
    seen = []
    for row in all_rows(lambda cursor, _: list_sessions(project.pk, query, cursor, 2), 100):
        seen.append(row.external_id)
        later = timezone.now() + timedelta(minutes=20 * len(seen))
        monkeypatch.setattr(clock, "now", lambda later=later: later)
    assert sorted(seen) == sorted(row.external_id for row in made)


def test_pages_cover_the_list_once_even_where_times_are_equal(project, session):
    at = timezone.now()
    made = [session() for _ in range(7)]
    Session.objects.filter(pk__in=[row.pk for row in made[:5]]).update(last_event_at=at)
    whole = walk(project, 500)
    assert sorted(whole) == sorted(row.external_id for row in made)
    for limit in (1, 2, 3, 7):
        assert walk(project, limit) == whole


def test_a_running_session_that_is_silent_is_idle(project, session):
    session("busy")
    session("silent", age_seconds=601)
    session("stopped", age_seconds=601, state="stopped")
    assert walk(project, 10, "is:running") == ["busy"]
    assert walk(project, 10, "is:idle") == ["silent"]
    shown = {row.external_id: row.shown_state for row in list_sessions(project.pk).items}
    assert shown == {"busy": "running", "silent": "idle", "stopped": "stopped"}


def test_sessions_are_sorted_by_what_their_rows_show(project, session):
    def make(name, *, age=0, minutes=1, **values):
        made = session(name, age_seconds=age, **values)
        began = timezone.now() - timedelta(seconds=age, minutes=minutes)
        Session.objects.filter(pk=made.pk).update(started_at=began)

    make("held", state="held", call_count=30)
    make(
        "looping",
        state="looping",
        last_loop_call_at=timezone.now(),
        call_count=90,
        meter_kind="repeat",
        meter_count=6,
        meter_limit=4,
    )
    make("running", call_count=400, minutes=10, meter_kind="cycle", meter_count=3, meter_limit=4)
    make("far", call_count=5, meter_kind="repeat", meter_count=1, meter_limit=4)
    make("idle", age=601, call_count=900, meter_kind="repeat", meter_count=9, meter_limit=4)
    make("stopped", state="stopped", call_count=80)
    make("ended", state="ended", call_count=900, meter_kind="repeat", meter_count=8, meter_limit=4)
    by_state = walk(project, 2, sort="-state")
    assert by_state[:2] == ["held", "looping"]
    assert by_state[-2:] == ["idle", "ended"]
    assert by_state == [*reversed(walk(project, 3, sort="state"))]
    # What a row does not show counts as nothing.
    assert walk(project, 2, sort="-limit")[:2] == ["looping", "running"]
    assert walk(project, 2, sort="-rate")[:4] == ["looping", "running", "held", "far"]
    for sort in ("state", "-limit", "rate"):
        assert sorted(walk(project, 1, sort=sort)) == sorted(walk(project, 50))


@pytest.mark.one_database("reads a plan")
@pytest.mark.servers
def test_a_page_of_the_list_is_one_query_by_index(project, session, django_assert_num_queries):
    for _ in range(20):
        session()
    with django_assert_num_queries(1) as asked:
        first = list_sessions(project.pk, limit=5)
    with connection.cursor() as db:
        db.execute(
            "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off"
        )
    with django_assert_num_queries(1) as asked:
        list_sessions(project.pk, cursor=first.next_cursor, limit=5)
    with connection.cursor() as db:
        db.execute("EXPLAIN " + asked.captured_queries[0]["sql"])
        plan = "\n".join(row[0] for row in db.fetchall())
    assert "session_by_time" in plan
    assert "Sort" not in plan


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "🙂", "MjAyNi0xMS0yMVQxMjowMDowMHwx", "Ym9ndXN8MQ"])
def test_invalid_cursors_are_rejected(cursor):
    with pytest.raises(BadCursor):
        ALL_SESSIONS.order.page(Session.objects.all(), cursor or "!")
    with pytest.raises(BadCursor):
        calls_cursor(cursor)


def test_calls_come_with_their_results_whatever_lies_between_in_three_queries(
    session, django_assert_num_queries
):
    row = session("s-1")
    Event.objects.bulk_create(
        Event(session=row, seq=seq, type=kind, call_id=call_id, tool="t" if kind == "call" else "", content=content, closes=closes)
        for seq, kind, call_id, content, closes in [
            (1, "call", "a", None, 0), (2, "call", "b", None, 0), (3, "result", "b", "second", 2), (4, "message", "m", "hello", 0),
            (5, "result", "a", "first", 1), (6, "call", "c", None, 0), (7, "result", "stray", "x", 0), (8, "call", "d", None, 0),
        ]
    )  # fmt: skip
    with django_assert_num_queries(3):
        page = session_calls(row, limit=3)
    assert [(call.call_id, call.result and call.result.content) for call in page.items] == [
        ("a", "first"), ("b", "second"), ("c", None),
    ]  # fmt: skip
    assert [call.call_id for call in session_calls(row, after_seq=calls_cursor(page.next_cursor)).items] == [
        "d"
    ]
    backwards = session_calls(row, before_seq=8, limit=2)
    assert [call.call_id for call in backwards.items] == ["b", "c"]
    assert [
        call.call_id for call in session_calls(row, before_seq=calls_cursor(backwards.next_cursor)).items
    ] == ["a"]


def test_a_session_is_found_in_its_own_project_only(project, session):
    from tests.support.projects import make_project

    session("s-1")
    assert get_session(project.pk, "s-1").external_id == "s-1"
    assert get_session(make_project().pk, "s-1") is None
    assert get_session(project.pk, "a\x00b") is None


def test_changes_since_a_cursor_are_returned(project, session):
    first = changed_since(project.pk, "")
    assert first.reset
    session("s-1")
    changes = changed_since(project.pk, first.cursor)
    assert [row.external_id for row in changes.sessions] == ["s-1"]
    assert not changes.reset
    for _ in range(3):
        session()
    assert changed_since(project.pk, first.cursor, limit=2).reset
    assert changed_since(project.pk, "nonsense").reset
    assert changed_since(project.pk, "9" * 30).reset


@pytest.mark.promise("REL-22")
@pytest.mark.django_db(transaction=True)
@pytest.mark.servers
def test_a_change_that_commits_late_is_not_missed():
    from tests.support.projects import make_project

    project = make_project()
    began, go_on = threading.Event(), threading.Event()

    def slow_writer():
        with transaction.atomic():
            Session.objects.create(project=project, external_id="slow")
            began.set()
            go_on.wait(PATIENCE_SECONDS)

    writer = in_thread(slow_writer)
    assert began.wait(PATIENCE_SECONDS)
    Session.objects.create(project=project, external_id="quick")
    before = changed_since(project.pk, "0")
    assert [row.external_id for row in before.sessions] == ["quick"]
    go_on.set()
    writer.result()
    after = changed_since(project.pk, before.cursor)
    assert "slow" in [row.external_id for row in after.sessions]
