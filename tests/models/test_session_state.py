"""The one definition of a session's state: precedence, who stopped it, and idleness in Python and in SQL."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.models import Session, SessionState, StoppedByKind
from detection.models.session_state import (
    IDLE_AFTER,
    STORED_STATES,
    clear_stop,
    derive_state,
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


@pytest.mark.parametrize(
    ("ended", "kind", "held", "looping"),
    list(itertools.product((None, NOW), StoppedByKind.values, (False, True), (False, True))),
)
def test_the_strongest_reason_names_the_state(ended, kind, held, looping):
    session = Session(ended_at=ended, stopped_by_kind=kind)
    reasons = (
        (ended is not None, "ended"),
        (kind in ("person", "containment"), "stopped"),
        (held, "held"),
        (kind == "detection", "stopped"),
        (looping, "looping"),
        (True, "running"),
    )
    state = derive_state(session, has_open_approval=held, has_active_loop=looping)
    assert state == next(name for applies, name in reasons if applies)
    assert state in STORED_STATES


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


@pytest.mark.promise("REL-33")
def test_a_running_session_is_idle_after_five_minutes_and_no_other_state_is():
    assert shown_state("running", NOW - IDLE_AFTER, NOW) == "running"
    assert shown_state("running", NOW - IDLE_AFTER - timedelta(microseconds=1), NOW) == "idle"
    for state in set(STORED_STATES) - {SessionState.RUNNING}:
        assert shown_state(state, NOW - timedelta(days=3), NOW) == state


_rows = st.lists(
    st.tuples(
        st.sampled_from([state.value for state in STORED_STATES]),
        st.one_of(
            st.integers(-3, 3).map(lambda micros: IDLE_AFTER + timedelta(microseconds=micros)),
            st.timedeltas(timedelta(seconds=-5), timedelta(days=2)),
        ),
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
        for number, (state, age) in enumerate(rows):
            Session.objects.create(
                project=project, external_id=str(number), state=state, last_event_at=NOW - age
            )
        stored = {row.external_id: row for row in Session.objects.all()}
        in_python = {name: shown_state(row.state, row.last_event_at, NOW) for name, row in stored.items()}
        counted = Session.objects.annotate(shown=shown_state_expression(NOW))
        assert dict(counted.values_list("external_id", "shown")) == in_python
        for state in SessionState:
            found = Session.objects.filter(state_condition(state, NOW)).values_list("external_id", flat=True)
            assert set(found) == {name for name, shown in in_python.items() if shown == state}

    agree()
