"""Softer endings of blocked calls through the guard, a hook and the API of settings."""

import time

import pytest

from detection.models import Event, Incident, Session
from detection.services.maintenance.hourly_counts import count_calls
from detection.services.what_if import worker

FILE = {"path": "notes.md"}


@pytest.fixture
def agent(api):
    return Reader(api)


class Reader:
    """An agent that reports each result with its next call."""

    def __init__(self, api):
        self.api, self.results, self.number = api, [], 0

    def asks(self, content=None, tool="read_file", arguments=FILE, **more):
        self.number += 1
        call = {"call_id": f"c{self.number}", "tool": tool, "arguments": arguments}
        answer = self.api.post(f"/guard?render={more.pop('render', 'anthropic')}", {
            "session": "s-1", "results": self.results, "calls": [call], **more,
        }).json()  # fmt: skip
        self.results = [] if content is None else [{"call_id": call["call_id"], "content": content}]
        return answer["verdicts"][0]

    def sends_again(self, call_id, tool="read_file", arguments=FILE):
        call = {"call_id": call_id, "tool": tool, "arguments": arguments}
        return self.api.post("/guard", {"session": "s-1", "calls": [call]}).json()["verdicts"][0]


def set_mode(api, mode, **values):
    assert api.put("/overrides", {"values": {"mode": mode, **values}}).status_code in (200, 201)


def test_the_known_answer_of_a_read_comes_back_with_its_age_and_is_stored_once(api, agent):
    set_mode(api, ["reuse"])
    for _ in range(3):
        agent.asks("three notes")
    verdict = agent.asks()
    assert (verdict["decision"], verdict["rung"], verdict["ending"]) == ("block", "reuse", "reuse")
    assert verdict["reused"] == {"seq": 5, "age_seconds": 0}
    note, answer = verdict["message"].split("\n\n")
    assert "'read_file' was called with identical arguments 4 times" in note
    assert answer == "The answer that the same call got just now:\nthree notes"
    assert verdict["rendered"]["is_error"] is False
    again = agent.sends_again("c4")
    assert again["duplicate"]
    assert again["message"].endswith("\nthree notes")
    row = Event.objects.get(call_id="c4")
    assert "three notes" not in row.verdict.dump()
    (stored,) = [one for one in api.get("/sessions/s-1/calls").json()["items"] if one["call_id"] == "c4"]
    assert (stored["ending"], stored["decision"]) == ("reuse", "block")
    assert Incident.objects.get().rung == "reuse"
    Event.objects.filter(type="result").delete()
    gone = agent.sends_again("c4")
    assert (gone["decision"], gone["ending"], gone["reused"]) == ("block", None, None)


def test_the_known_answer_is_given_to_its_own_call_alone(api, agent):
    set_mode(api, ["reuse"])
    assert api.put("/tool-rules/write_file", {"values": {"enabled": False}, "note": "ours"}).is_success
    for _ in range(3):
        agent.asks("three notes")
    calls = [
        {"call_id": f"last-{tool}", "tool": tool, "arguments": FILE} for tool in ("read_file", "write_file")
    ]
    body = {"session": "s-1", "results": agent.results, "calls": calls}
    read, written = api.post("/guard", body).json()["verdicts"]
    assert read["message"].endswith("\nthree notes")
    assert (written["decision"], written["message"], written["reused"]) == ("allow", "", None)


@pytest.mark.parametrize(
    "content",
    [
        "x" * 20_000,
        "password=hunter2hunter2 AKIAIOSFODNN7EXAMPLE",
        "start\n[cut by loopguard-client: 90000 characters, sha256 " + "a" * 32 + "]",
        "bad \x00 text",
    ],
    ids=["cut", "redacted", "cut by the client", "altered"],
)
def test_an_answer_that_is_not_stored_as_it_was_is_never_given_back(api, agent, content):
    set_mode(api, ["reuse"])
    for _ in range(3):
        agent.asks(content)
    verdict = agent.asks()
    assert (verdict["decision"], verdict["rung"], verdict["ending"]) == ("block", "reuse", None)
    assert verdict["reused"] is None
    assert verdict["message"].startswith("The call was not run.")
    assert "answer to the same call" not in verdict["message"]
    assert verdict["rendered"]["is_error"] is True


def test_nothing_is_given_back_without_stored_texts_or_of_another_session(api, agent, project):
    set_mode(api, ["reuse"])
    project.stores_payloads = False
    project.save()
    for _ in range(3):
        agent.asks("three notes")
    assert agent.asks()["ending"] is None
    other = [api.call("s-2", tool="read_file", arguments=FILE).json()["verdicts"][0] for _ in range(4)]
    assert (other[-1]["decision"], other[-1]["ending"]) == ("block", None)


def test_an_agent_is_told_to_finish_without_tools_in_its_own_shape(api, agent):
    set_mode(api, ["finish", "stop"])
    for _ in range(3):
        agent.asks("0 hits", tool="search_web")
    verdict = agent.asks(tool="search_web", render="claude_code")
    assert (verdict["decision"], verdict["ending"]) == ("block", "finish")
    assert "Use no more tools." in verdict["message"]
    assert verdict["message"].endswith("The same call again will end the session.")
    denied = verdict["rendered"]["hookSpecificOutput"]
    assert (denied["permissionDecision"], denied["permissionDecisionReason"]) == ("deny", verdict["message"])


def blocked_in_statistics(api):
    count_calls()
    return api.get("/statistics").json()["total"]["blocked"]


def test_a_delayed_call_runs_after_its_pause_and_the_next_pause_is_longer(api, agent):
    set_mode(api, ["delay"], delay_seconds=1)
    for _ in range(3):
        agent.asks("12 visitors", tool="fetch_page")
    verdict = agent.asks(tool="fetch_page")
    assert (verdict["decision"], verdict["ending"], verdict["retry_after_seconds"]) == ("block", "delay", 1)
    assert verdict["message"].endswith("Wait 1 s before you make this call again; it may run then.")
    early = agent.sends_again("c4", "fetch_page")
    assert (early["decision"], early["duplicate"]) == ("block", True)
    assert Session.objects.get().blocked_count == blocked_in_statistics(api) == 1
    time.sleep(1.1)
    released = agent.sends_again("c4", "fetch_page")
    assert (released["decision"], released["ending"], released["retry_after_seconds"]) == (
        "allow",
        None,
        None,
    )
    repeated = agent.sends_again("c4", "fetch_page")
    assert (repeated["decision"], repeated["rung"], repeated["message"]) == ("allow", None, "")
    session = Session.objects.get()
    assert (session.blocked_count, session.call_count) == (blocked_in_statistics(api), 4) == (0, 4)
    assert Event.objects.get(call_id="c4").decision == "allow"
    agent.results = [{"call_id": "c4", "content": "12 visitors"}]
    longer = agent.asks(tool="fetch_page")
    assert (longer["ending"], longer["retry_after_seconds"]) == ("delay", 2)
    assert api.get("/sessions/s-1/calls").json()["items"][1]["result"]["content"] == "12 visitors"


def test_a_delayed_call_does_not_run_in_a_session_that_a_person_has_stopped(api, agent):
    set_mode(api, ["delay"], delay_seconds=1)
    for _ in range(3):
        agent.asks("12 visitors", tool="fetch_page")
    assert agent.asks(tool="fetch_page")["ending"] == "delay"
    api.post("/sessions/s-1/stop", {"reason": "Enough."})
    time.sleep(1.1)
    stopped = agent.sends_again("c4", "fetch_page")
    assert (stopped["decision"], stopped["ending"]) == ("stop", None)
    assert "Reason given: Enough." in stopped["message"]
    assert Event.objects.get(call_id="c4").decision == "block"


def test_another_id_after_the_pause_runs_as_well(api, agent):
    set_mode(api, ["delay"], delay_seconds=1)
    for _ in range(3):
        agent.asks("12 visitors", tool="fetch_page")
    assert agent.asks(tool="fetch_page")["ending"] == "delay"
    time.sleep(1.1)
    assert agent.asks("12 visitors", tool="fetch_page")["decision"] == "allow"
    assert agent.asks(tool="fetch_page")["retry_after_seconds"] == 2


def test_a_hook_gets_the_ending_as_a_denial_with_its_text_and_it_is_counted(api):
    set_mode(api, ["reuse"])
    body = {"session_id": "h-1", "tool_name": "Read", "tool_input": {"file_path": "/notes.md"}}
    for number in range(4):
        named = {**body, "tool_use_id": f"t{number}"}
        answer = api.post("/hooks/claude-code", named | {"hook_event_name": "PreToolUse"}).json()
        if number < 3:
            done = {"hook_event_name": "PostToolUse", "tool_response": "three notes"}
            api.post("/hooks/claude-code", named | done)
    output = answer["hookSpecificOutput"]
    assert output["permissionDecision"] == "deny"
    assert output["permissionDecisionReason"].endswith("\nthree notes")
    metrics = api.request("GET", "http://127.0.0.1/metrics").text
    assert 'loopguard_guard_endings_total{ending="reuse"}' in metrics


def test_a_what_if_counts_the_endings_of_a_ladder(api, agent):
    for _ in range(3):
        agent.asks("three notes")
    agent.asks()
    tried = api.post("/what-if", {"scope": "project", "values": {"mode": ["reuse"]}}).json()["id"]
    worker.run_waiting(lambda: False)
    result = api.get(f"/what-if/{tried}").json()["result"]
    assert result["endings"] == {"before": {}, "after": {"reuse": 1}}
    assert result["decisions"]["after"]["block"] == 1
