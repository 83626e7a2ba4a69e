"""Now: the loops that run at this moment with what they cost, and the sessions that fell silent in one."""

from datetime import timedelta

from detection.models import Incident, Project, Session
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.ingest import ingest
from detection.services.sessions import evaluation
from tests.console.scenes import ask, loop, principal, text
from tests.support.past import move_back


def now(world):
    return text(world.client.get(f"{world.base}/now"))


def older(minutes, **which):
    """Let time pass for some sessions."""
    rows = Session.objects.filter(**which)
    move_back(rows, timedelta(minutes=minutes), "last_event_at", "last_loop_call_at")


def test_a_loop_that_runs_is_a_card_and_falls_silent_after_two_minutes(world):
    page = now(world)
    assert "1 session is looping now" in page
    assert "Looping now 1 session, 1 loop" in page
    assert "s-1" in page
    assert "Stop session" in page
    assert "Stop everything of…" in page
    older(3, project=world.project)
    page = now(world)
    assert "Nothing is looping." in page
    assert "Went silent in a loop 1" in page
    assert "Stop session" not in page


def test_sessions_of_one_loop_share_a_card_with_what_they_cost_a_minute(world):
    older(90, project=world.project)
    for number in range(2):
        loop(world.project, f"twin-{number}", cost_usd=0.5, agent="finance")
    page = now(world)
    assert "2 sessions are looping now" in page
    assert "2 sessions, 1 loop" in page
    assert "2 sessions of finance" in page
    # Four calls of half a dollar in each session, within five minutes.
    assert "burn $0.80 a minute" in page
    assert page.count("/ min") == 1
    assert "Stop 2" in page
    assert "Both stop before their next call." in page


def test_without_costs_it_counts_calls(world):
    page = now(world)
    assert "with 1 call a minute" in page
    assert "1 call / min" in page
    assert "$ a minute" not in page


def test_a_session_that_only_reports_is_not_said_to_stop(world):
    older(90, project=world.project)
    for number in range(6):
        ingest(
            principal(world.project),
            [
                EventRecord(
                    type="call", session="watched", call_id=f"c-{number}", tool="t", arguments='{"a":1}'
                ),
                EventRecord(type="result", session="watched", call_id=f"c-{number}", content="same"),
            ],
        )
    evaluation.evaluate(Session.objects.get(external_id="watched").key)
    page = now(world)
    assert "Only watched" in page
    assert "Request stop" in page
    assert "a stop is recorded and cannot be enforced" in page
    assert "Stop session" not in page
    change = f"{world.base}/session/change"
    world.client.post(change, {"session": "watched"})
    page = now(world)
    assert "Stop requested, cannot be enforced" in page
    assert "Withdraw" in page
    assert "Guard this agent" in page
    undone = world.client.post(change, {"session": "watched", "action": "withdraw"}, follow=True)
    assert "Stop withdrawn from 1 session." in text(undone)
    assert "Guard this agent" not in now(world)


def test_other_projects_and_healthy_sessions_are_not_there(world):
    other = Project.objects.create(slug="elsewhere", name="Elsewhere")
    loop(other, "of-others")
    ask(world.project, "healthy", 1)
    page = now(world)
    assert "of-others" not in page
    assert "healthy" not in page
    assert "1 session is looping now" in page


def test_a_loop_that_a_person_called_none_is_not_there(world):
    Incident.objects.filter(project=world.project).update(label="false_alarm")
    assert "1 loop" not in now(world)


def test_the_first_page_leads_to_it_once_events_have_come(world):
    Project.objects.filter(pk=world.project.pk).update(first_event_at="2026-01-01T00:00Z")
    assert world.client.get(f"{world.base}/")["Location"] == f"{world.base}/now"
