"""The one definition of a session's state: precedence, who stopped it, and idleness in Python and in SQL."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings as conf
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.models import Session, SessionState, StoppedByKind
from detection.models.session_state import (
    ENDED_AFTER,
    IDLE_AFTER,
    OPEN_CALL_ENDED_AFTER,
    STORED_STATES,
    begin_stop,
    clear_stop,
    derive_state,
    in_loop_condition,
    is_in_loop,
    looping_now_condition,
    note_ran,
    note_reach,
    note_refused,
    note_verdict,
    shown_state,
    shown_state_expression,
    state_condition,
)
from tests.support.projects import make_project

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def noted(session, *verdicts, is_guarded=True):
    for number, decision in enumerate(verdicts, 1):
        note_verdict(
            session,
            decision,
            is_guarded=is_guarded,
            call_number=number,
            at=NOW,
            by="repeat",
            reason="4 times",
        )
    return session


LETTERS = {"can_stop": "s", "can_block": "b", "watch_only": "w"}


@pytest.mark.parametrize(
    ("ended", "kind", "held", "looping"),
    list(itertools.product((None, NOW), StoppedByKind.values, (False, True), (None, NOW))),
)
def test_the_strongest_reason_names_the_state(ended, kind, held, looping):
    session = Session(ended_at=ended, stopped_by_kind=kind, stop_reach="can_stop")
    reasons = (
        (ended is not None, "ended"),
        (kind, "stopping"),
        (held, "held"),
        (looping is not None, "looping"),
        (True, "running"),
    )
    state = derive_state(session, has_open_approval=held, last_loop_call_at=looping)
    assert state == next(name for applies, name in reasons if applies)
    assert state in STORED_STATES


def state_after(reach, *notes, reach_now=None):
    session = Session(reach=reach, call_reaches=LETTERS[reach])
    begin_stop(session, StoppedByKind.PERSON, NOW, "ana", "enough")
    for note in notes:
        note(session)
    session.call_reaches = LETTERS[reach_now or reach]
    return derive_state(session, has_open_approval=False, last_loop_call_at=None)


@pytest.mark.parametrize(
    ("reach", "requested", "refused", "ran", "ran_after_refusal", "refused_after_running"),
    [
        ("can_stop", "stopping", "stopped", "still_calling", "still_calling", "stopped"),
        ("can_block", "stopping", "calls_blocked", "still_calling", "still_calling", "calls_blocked"),
        (
            "watch_only", "stop_unenforced", "calls_blocked", "stop_unenforced", "still_calling", "calls_blocked",
        ),
    ],
)  # fmt: skip
def test_a_stop_has_the_state_that_its_evidence_shows(
    reach, requested, refused, ran, ran_after_refusal, refused_after_running
):
    assert state_after(reach) == requested
    assert state_after(reach, note_refused) == refused
    assert state_after(reach, note_ran, note_ran) == ran
    assert state_after(reach, note_refused, note_ran) == ran_after_refusal
    assert state_after(reach, note_ran, note_refused) == refused_after_running


def test_a_run_that_makes_its_refused_calls_is_not_called_stopped_at_its_next_refusal():
    session = noted(Session(call_reaches="s"), "stop")
    for _ in range(2):
        note_ran(session)
        note_reach(session, "watch_only")
        noted(session, "stop")  # in the request that reported the result
        state = derive_state(session, has_open_approval=False, last_loop_call_at=NOW)
        assert (state, session.reach) == ("still_calling", "watch_only")
    assert (session.refused_since_stop, session.ran_since_stop) == (3, 2)
    noted(session, "allow")
    assert derive_state(session, has_open_approval=False, last_loop_call_at=None) == "running"


def test_a_run_that_no_longer_asks_for_all_its_calls_is_not_called_stopped():
    assert state_after("can_stop", note_refused, reach_now="watch_only") == "calls_blocked"


@pytest.mark.parametrize("allowed", ["allow", "warn"])
def test_a_stop_lasts_until_a_later_call_is_allowed(allowed):
    session = noted(Session(), "allow", "stop", "block", "hold")
    assert (session.stopped_by_kind, session.stopped_by, session.stop_reason) == (
        "detection",
        "repeat",
        "4 times",
    )
    noted(session, allowed)
    assert (session.stopped_by_kind, session.stopped_at, session.stopped_by) == ("", None, "")


def test_observed_calls_never_stop_a_session_but_mark_the_first_that_would_have_been():
    session = noted(Session(), "allow", "stop", "stop", "allow", is_guarded=False)
    assert (session.stopped_by_kind, session.would_have_stopped_at_call) == ("", 2)


def test_no_verdict_changes_what_a_person_did():
    session = Session(stopped_by_kind="person", stopped_at=NOW, stopped_by="ana")
    noted(session, "stop", "allow")
    assert (session.stopped_by_kind, session.stopped_by) == ("person", "ana")
    clear_stop(session)
    assert (session.stopped_by_kind, session.stopped_at, session.stopped_by) == ("", None, "")


def row(state, age, *, loop_age=None, is_open=False):
    at = None if loop_age is None else NOW - loop_age
    return Session(state=state, last_event_at=NOW - age, last_loop_call_at=at, has_open_call=is_open)


MOMENT = timedelta(microseconds=1)


@pytest.mark.promise("REL-33")
def test_time_alone_makes_a_session_idle_silent_and_ended():
    assert shown_state(row("running", IDLE_AFTER), NOW) == "running"
    assert shown_state(row("running", IDLE_AFTER + MOMENT), NOW) == "idle"
    assert shown_state(row("looping", MOMENT, loop_age=conf.LOOPING_FOR), NOW) == "looping"
    assert shown_state(row("looping", MOMENT, loop_age=conf.LOOPING_FOR + MOMENT), NOW) == "silent"
    for state in set(STORED_STATES) - {SessionState.HELD, SessionState.ENDED}:
        assert shown_state(row(state, ENDED_AFTER), NOW) != "ended"
        assert shown_state(row(state, ENDED_AFTER + MOMENT), NOW) == "ended"
        assert shown_state(row(state, ENDED_AFTER + MOMENT, is_open=True), NOW) != "ended"
        assert shown_state(row(state, OPEN_CALL_ENDED_AFTER + MOMENT, is_open=True), NOW) == "ended"
    assert shown_state(row("held", timedelta(days=3)), NOW) == "held"


def near(limit):
    return st.integers(-3, 3).map(lambda micros: limit + timedelta(microseconds=micros))


_ages = st.one_of(
    *map(near, (IDLE_AFTER, ENDED_AFTER, OPEN_CALL_ENDED_AFTER, timedelta(minutes=2))),
    st.timedeltas(timedelta(seconds=-5), timedelta(days=2)),
)
_rows = st.lists(
    st.tuples(
        st.sampled_from([state.value for state in STORED_STATES]),
        _ages,
        st.one_of(st.none(), _ages),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.django_db
def test_python_the_filter_and_the_expression_agree_on_every_row():
    project = make_project("support")

    @settings(max_examples=60, deadline=None)
    @given(_rows)
    def agree(rows):
        Session.objects.all().delete()
        for number, (state, age, loop_age, is_open) in enumerate(rows):
            made = row(state, age, loop_age=loop_age, is_open=is_open)
            made.project, made.external_id = project, str(number)
            made.save()
        stored = {row.external_id: row for row in Session.objects.all()}
        in_python = {name: shown_state(row, NOW) for name, row in stored.items()}
        counted = Session.objects.annotate(shown=shown_state_expression(NOW))
        assert dict(counted.values_list("external_id", "shown")) == in_python

        def names(condition):
            return set(Session.objects.filter(condition).values_list("external_id", flat=True))

        for state in SessionState:
            assert names(state_condition(state, NOW)) == {
                name for name, shown in in_python.items() if shown == state
            }
        in_loop = {name for name, row in stored.items() if is_in_loop(row, NOW)}
        assert names(in_loop_condition(NOW)) == in_loop
        assert names(~in_loop_condition(NOW)) == stored.keys() - in_loop
        now_looping = names(looping_now_condition(NOW))
        assert names(state_condition(SessionState.LOOPING, NOW)) <= now_looping <= in_loop

    agree()
