"""Silence: calls without a result and runs that stop, from POST /api/v1/guard and /events to the incident and its alert event."""

from datetime import timedelta

import pytest
from django.utils import timezone

from detection.engine import snapshot
from detection.models import AlertEvent, Event, Session, TrackerState
from detection.services.alerting import rendering
from detection.services.retention import retention
from detection.services.sessions import stalled
from detection.services.sessions.evaluation import evaluate
from detection.services.sessions.stalled import report_due

READ = {"tool": "read_file", "arguments": {"path": "a.txt"}}
FETCH = {"tool": "fetch_url", "arguments": {"url": "https://example.com"}}


@pytest.fixture
def silent(api):
    """Stalled sessions are reported; returns how to send events, and to check them later."""
    api.put("/overrides", {"values": {"stalled_enabled": True}})
    return Silent(api)


class Silent:
    def __init__(self, api):
        self.api = api

    def guard(self, call_id, call=READ, **more):
        body = {"session": "s-1", "calls": [call | {"call_id": call_id}]} | more
        return self.api.post("/guard", body).json()

    def send(self, *events, status=202):
        answer = self.api.post("/events", {"events": [{"session": "s-1"} | event for event in events]})
        assert answer.status_code == status
        for session in Session.objects.all():
            evaluate(session.key)
        return answer.json()

    def result(self, call_id, content="alpha"):
        return self.send({"type": "result", "call_id": call_id, "content": content})

    def later(self, **time):
        report_due(timezone.now() + timedelta(**time))
        return [(one["kind"], one["tool"], one["status"]) for one in self.incidents()]

    def incidents(self):
        return self.api.get("/incidents", q="detector:stalled").json()["items"]


def test_a_call_without_a_result_is_reported_after_the_limit_of_its_class_until_the_result_arrives(silent):
    silent.guard("c1")
    silent.result("c1")
    assert silent.guard("c2", FETCH)["decision"] == "allow"

    assert silent.later(minutes=9) == []
    assert silent.later(minutes=11) == [("stalled", "fetch_url", "open")]
    assert silent.later(minutes=45) == [("stalled", "fetch_url", "open")], "once"
    event = AlertEvent.objects.get(type="opened")
    assert (event.facts["kind"], event.facts["severity"], event.facts["unit"]) == ("stalled", "warning", "")
    assert event.facts["detail"]["silence"] == "has returned no result"
    sentence = rendering.sentence(event.type, event.actor, event.facts)
    assert sentence.startswith("Stalled: 'fetch_url' was silent for 11 min; the limit is 10 min. (")
    assert silent.api.get("/sessions/s-1").json()["state"] == "running", "silence is no loop"

    silent.result("c2", "the page")
    (incident,) = silent.incidents()
    assert (incident["status"], incident["recovered"]) == ("ended", True)
    ended = AlertEvent.objects.get(type="ended")
    assert "No longer stalled" in rendering.sentence("ended", "system", ended.facts)
    assert ended.facts["note"] == "the result arrived"
    assert Session.objects.get().has_active_incident is False


def test_a_stalled_call_stays_reported_while_other_calls_are_made_and_while_nobody_comes_back(silent):
    silent.guard("c1")
    silent.result("c1")
    silent.guard("c2", FETCH)
    silent.later(minutes=11)
    for number in range(3, 10):
        silent.guard(f"c{number}", READ | {"arguments": {"path": f"{number}.txt"}})
        silent.result(f"c{number}", f"text {number}")
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    retention.end_abandoned()
    assert [one["status"] for one in silent.incidents()] == ["open"]

    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=25))
    retention.end_abandoned()
    assert [one["status"] for one in silent.incidents()] == ["ended"]


def test_a_session_that_cannot_be_checked_keeps_no_other_from_being_reported(silent, monkeypatch):
    for session in ("s-1", "s-2"):
        silent.guard("c1", session=session)
        silent.send({"type": "result", "session": session, "call_id": "c1", "content": "alpha"})
        silent.guard("c2", FETCH, session=session)
    first = Session.objects.order_by("silence_check_at").first()
    report = stalled._report

    def reported(key, now):
        if key.session_id == first.pk:
            raise ZeroDivisionError
        report(key, now)

    monkeypatch.setattr(stalled, "_report", reported)
    assert len(silent.later(minutes=11)) == 1


def test_a_call_that_sends_heartbeats_is_not_stalled(silent):
    silent.guard("c1")
    silent.result("c1")
    silent.guard("c2", FETCH)
    Event.objects.filter(call_id="c2").update(received_at=timezone.now() - timedelta(minutes=9))
    assert silent.send({"type": "heartbeat", "call_id": "c2"})["accepted"] == 1

    assert silent.later(minutes=9) == []
    assert silent.later(minutes=11) == [("stalled", "fetch_url", "open")]
    silent.send({"type": "heartbeat", "call_id": "c2"})
    assert AlertEvent.objects.get(type="ended").facts["note"] == "the call still runs"
    assert silent.later(minutes=11)[0] == ("stalled", "fetch_url", "open"), "it fell silent again"


def test_a_heartbeat_names_a_call_that_is_open_and_nothing_else(silent):
    silent.guard("c1")
    silent.result("c1")
    done = silent.send({"type": "heartbeat", "call_id": "c1"}, {"type": "heartbeat", "call_id": "other"})
    assert (done["accepted"], done["duplicate"]) == (1, 1), "the call has its result; an unknown one may come"

    done = silent.send({"type": "heartbeat"}, {"type": "heartbeat", "call_id": "c1", "content": "busy"})
    assert [(one["code"], one["path"]) for one in done["rejected"]] == [
        ("missing", "call_id"),
        ("unknown_field", "content"),
    ]


@pytest.mark.parametrize(
    "rest", [{"type": "end"}, {"type": "message", "role": "assistant", "content": "Done."}]
)
def test_a_run_that_stops_after_its_result_is_stalled_unless_the_agent_has_answered_or_ended(silent, rest):
    silent.guard("c1")
    silent.result("c1")
    assert silent.later(minutes=29) == []
    assert silent.later(minutes=31) == [("stalled", "read_file", "open")]
    silent.guard("c2", FETCH)
    assert AlertEvent.objects.get(type="ended").facts["note"] == "the run continued"

    silent.result("c2", "the page")
    silent.send(rest)
    assert [one[2] for one in silent.later(hours=3)] == ["ended"]


def test_sessions_are_left_alone_that_report_no_results_or_are_stopped_and_calls_that_did_not_run(silent):
    silent.guard("c1")
    assert silent.later(hours=3) == [], "this agent may never report results"

    for number in range(2, 7):  # blocked from the fourth on
        silent.guard(f"c{number}")
        if number < 5:
            silent.result(f"c{number}")
    silent.send({"type": "result", "call_id": "c1", "content": "alpha"})
    silent.api.put("/overrides", {"values": {"stalled_enabled": True, "stalled_run_seconds": 0}})
    assert silent.later(hours=3) == []

    silent.guard("c9", FETCH)
    silent.api.post("/sessions/s-1/stop", {"reason": "enough"})
    assert silent.later(hours=3) == []


def test_off_nothing_is_looked_at(api):
    silent = Silent(api)
    silent.guard("c1")
    silent.result("c1")
    silent.guard("c2", FETCH)
    assert Session.objects.get().silence_check_at is None
    assert silent.later(hours=3) == []


def test_an_approved_call_is_waited_for_from_its_approval_on(silent):
    silent.api.put("/overrides", {"values": {"stalled_enabled": True, "mode": "ask"}})
    number = 1
    while (told := silent.guard(f"c{number}"))["decision"] != "hold":
        silent.result(f"c{number}")
        number += 1
    row = TrackerState.objects.get()
    state = snapshot.load(bytes(row.snapshot))
    for record in state.runs[""].records:
        record.at -= 3600
    TrackerState.objects.update(snapshot=snapshot.dump(state))
    assert silent.later(minutes=11) == [], "it has not run"
    assert Session.objects.get().silence_check_at is not None, "its approval is no event"

    approval = told["verdicts"][0]["approval"]["id"]
    assert silent.api.post(f"/approvals/{approval}/decision", {"choice": "allow_once"}).status_code == 200
    Session.objects.update(silence_check_at=timezone.now())
    assert silent.later(minutes=1) == []
    assert silent.later(minutes=12) == [("stalled", "read_file", "open")]


def test_calls_of_a_run_that_has_ended_are_not_waited_for(silent):
    silent.api.put("/overrides", {"values": {"stalled_enabled": True, "counting_scope": "session"}})
    silent.guard("c1")
    silent.result("c1")
    silent.guard("c2", FETCH)
    silent.send({"type": "end"})
    silent.guard("c3", READ | {"arguments": {"path": "b.txt"}})
    silent.result("c3", "beta")
    assert silent.later(minutes=29) == []


def test_a_state_that_is_rebuilt_knows_that_the_agent_has_answered(silent):
    silent.guard("c1")
    silent.result("c1")
    silent.send({"type": "message", "role": "assistant", "content": "Done."})
    TrackerState.objects.update(snapshot=b'{"v":-1}', version=0)
    assert silent.later(hours=3) == []


def test_a_tool_rule_has_the_session_looked_at_earlier_and_cannot_switch_what_spans_tools(silent):
    limits = {"stalled_other_seconds": 60, "stalled_read_seconds": 60}
    assert silent.api.put("/tool-rules/fetch_*", {"values": limits}).status_code == 200
    silent.guard("c1")
    silent.result("c1")
    silent.guard("c2", FETCH)
    assert silent.later(minutes=2) == [("stalled", "fetch_url", "open")]
    for name in ("stalled_enabled", "family_enabled", "family_budget_enabled", "handoff_enabled"):
        assert silent.api.put("/tool-rules/x", {"values": {name: True}}).status_code == 422
