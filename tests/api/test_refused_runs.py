"""A stop where the host cannot end a run: its calls are blocked one by one, and nothing says that it has ended."""

from __future__ import annotations

import re
from typing import Any

import pytest

from detection.models import Session, SessionState
from detection.models.session_state import STOPPED_STATES
from detection.services.sessions.evaluation import evaluate
from tests.api.test_hooks import HookedAgent, is_denied

OTHER = {"tool_input": {"command": "cat other.txt"}}
CANNOT_END = ("codex", "copilot")
CAN_END = ("claude-code", "gemini-cli", "opencode", "kilo")


HOOK_BODY = {
    "codex": {
        "session_id": "019a",
        "turn_id": "t2",
        "transcript_path": None,
        "cwd": "/src",
        "model": "gpt-5",
    },
    "copilot": {"session_id": "c1", "timestamp": "2026-11-22T12:05:00.000Z", "cwd": "/src"},
}


def stuck(api, host):
    """An agent that repeats its call until that stops the session."""
    agent = HookedAgent(api, host)
    for _ in range(12):
        answer = agent.before()
        if Session.objects.filter(state__in=STOPPED_STATES).exists():
            return agent, answer
        if not is_denied(host, answer):
            agent.after()
    raise AssertionError("nothing stopped it")


@pytest.mark.parametrize("host", CANNOT_END)
def test_every_call_is_refused_and_no_message_says_that_the_session_is_stopped(api, host):
    agent, first = stuck(api, host)
    answers = [first, *(agent.before(**OTHER) for _ in range(3))]
    assert all(is_denied(host, one) for one in answers)
    assert not any(re.search("session (is |was )?stopped", str(one), re.IGNORECASE) for one in answers)
    assert all("further call of this run is blocked" in str(one) for one in answers)
    assert Session.objects.get().state == SessionState.CALLS_BLOCKED
    (listed,) = api.get("/sessions", state="calls_blocked").json()["items"]
    assert listed["state"] == "calls_blocked"
    assert api.get("/sessions", state="stopped").json()["items"] == []


@pytest.mark.parametrize("host", [*CANNOT_END, *CAN_END])
def test_a_block_before_the_stop_says_what_the_stop_does_at_this_host(api, host):
    agent, said = HookedAgent(api, host), ""
    for _ in range(12):
        answer = agent.before()
        if Session.objects.filter(state__in=STOPPED_STATES).exists():
            break
        if is_denied(host, answer):
            said += str(answer)
        else:
            agent.after()
    assert ("will end the session" in said) is (host in CAN_END)
    assert ("will get all further calls refused" in said) is (host in CANNOT_END)


@pytest.mark.parametrize(("host", "state"), [("codex", "calls_blocked"), ("claude-code", "stopped")])
def test_a_session_that_a_person_stops_is_called_stopped_only_where_its_host_ends_the_run(api, host, state):
    agent = HookedAgent(api, host)
    agent.before()
    name = Session.objects.get().external_id
    assert api.post(f"/sessions/{name}/stop", {"reason": "enough"}).json()["state"] == "stopping"
    said = str(agent.before(**OTHER))
    assert ("session was stopped" in said) is (state == "stopped")
    assert api.get(f"/sessions/{name}").json()["state"] == state


@pytest.mark.parametrize("host", CAN_END)
def test_where_the_host_ends_the_run_a_call_outside_the_loop_is_allowed_as_before(api, host):
    agent, first = stuck(api, host)
    assert first["stop"] if "stop" in first else first["continue"] is False
    assert not is_denied(host, agent.before(**OTHER))
    assert Session.objects.get().state != SessionState.STOPPED


@pytest.mark.parametrize("host", CANNOT_END)
def test_a_person_resumes_it(api, host):
    agent, _ = stuck(api, host)
    assert api.post(f"/sessions/{Session.objects.get().external_id}/resume").status_code == 200
    assert not is_denied(host, agent.before(**OTHER))


@pytest.mark.parametrize("host", CANNOT_END)
def test_another_task_of_its_user_is_not_refused(api, host):
    agent, _ = stuck(api, host)
    body = {"hook_event_name": "UserPromptSubmit", "prompt": "Write the report now."}
    agent.send({**HOOK_BODY[host], **body})
    evaluate(Session.objects.get().key)
    assert not is_denied(host, agent.before(**OTHER))


def test_behind_a_proxy_of_tools_every_further_call_is_refused_and_nothing_says_that_the_run_ended(api):
    def ask(query: str) -> dict[str, Any]:
        body = {"session": "s-1", "calls": [{"tool": "search_web", "arguments": {"q": query}}]}
        answer = api.request("POST", "/guard", json=body, headers={"User-Agent": "loopguard-client/0 mcp"})
        return answer.json()["verdicts"][0]

    said = [ask("reset password") for _ in range(8)]
    assert said[-1]["decision"] == "stop"
    assert "will get all further calls refused" in said[-2]["message"]
    other = ask("change password")
    assert other["decision"] == "stop"
    texts = " ".join([*(one["message"] for one in said), other["message"]])
    assert not re.search("session (is |was )?stopped|end the session", texts, re.IGNORECASE)
    assert Session.objects.get().state == SessionState.CALLS_BLOCKED
