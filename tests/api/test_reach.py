"""What can be done to a session, an agent and a key, learned from how the newest calls arrived."""

import pytest

from detection.models import Session
from detection.services.sessions.evaluation import evaluate
from tests.api.test_hooks import HookedAgent


def reported(api, session, number, agent=""):
    """Report a call that has run."""
    call = {"type": "call", "session": session, "agent": agent, "tool": "fetch", "arguments": {"n": number}}
    assert api.post("/events", call).status_code == 202
    evaluate(Session.objects.get(external_id=session).key)


def reach(api, session):
    return api.get(f"/sessions/{session}").json()["reach"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("claude-code", "can_stop"),
        ("gemini-cli", "can_stop"),
        ("codex", "can_block"),
        ("copilot", "can_block"),
        ("opencode", "can_stop"),
        ("cline", "can_stop"),
        ("pi", "can_stop"),
        ("qwen-code", "can_block"),
        ("droid", "can_stop"),
        ("cursor", "can_block"),
        ("goose", "can_block"),
        ("openhands", "can_block"),
        ("windsurf", "can_block"),
        ("kiro", "can_block"),
        ("openclaw", "can_stop"),
    ],
)
def test_the_hooks_of_a_host_reach_as_far_as_its_stop(api, host, expected):
    agent = HookedAgent(api, host)
    agent.before()
    agent.after()
    assert api.get("/sessions").json()["items"][0]["reach"] == expected


@pytest.mark.parametrize(
    ("sender", "integration", "expected"),
    [
        ("curl/8", "guard", "can_stop"),
        ("loopguard-client/1.0", "client", "can_stop"),
        ("loopguard-client/1.0 mcp", "mcp", "can_block"),
    ],
)
def test_who_asks_before_each_call_can_be_stopped_unless_it_is_a_proxy_of_tools(
    api, sender, integration, expected
):
    body = {"session": "s", "calls": [{"tool": "fetch"}]}
    assert api.post("/guard", body, headers={"User-Agent": sender}).status_code == 200
    session = api.get("/sessions/s").json()
    assert (session["integration"], session["reach"]) == (integration, expected)


def test_a_hook_that_only_reports_results_is_watched(api):
    api.post(
        "/hooks/codex",
        {"session_id": "h", "tool_name": "Bash", "hook_event_name": "PostToolUse", "tool_response": "x"},
    )
    assert reach(api, "h") == "watch_only"


def test_the_weakest_of_the_newest_ten_calls_holds(api):
    for number in range(12):
        api.call("mixed", arguments={"n": number})
    assert reach(api, "mixed") == "can_stop"
    reported(api, "mixed", 100)
    assert reach(api, "mixed") == "watch_only"
    for number in range(200, 209):
        api.call("mixed", arguments={"n": number})
    assert reach(api, "mixed") == "watch_only"
    api.call("mixed", arguments={"n": 300})
    assert reach(api, "mixed") == "can_stop"


def test_reported_calls_are_only_watched_and_filters_and_exports_agree(api):
    api.call("asks")
    reported(api, "tells", 1)
    assert [one["session"] for one in api.get("/sessions", q="reach:watch_only").json()["items"]] == ["tells"]
    assert [one["session"] for one in api.get("/sessions", q="reach:can_stop").json()["items"]] == ["asks"]


def test_an_agent_has_the_weakest_reach_of_its_newest_ten_calls(api):
    for number in range(3):
        reported(api, "old", number, agent="browser")
    for number in range(4):
        api.call("new", arguments={"n": number}, agent="browser")
    api.call("other", agent="coder")
    agents = {one["name"]: one for one in api.get("/agents").json()["items"]}
    assert (agents["browser"]["reach"], agents["coder"]["reach"]) == ("watch_only", "can_stop")
    assert (agents["browser"]["sessions"], agents["browser"]["calls"]) == (2, 7)
    for number in range(10, 16):
        api.call("new", arguments={"n": number}, agent="browser")
    assert {one["name"]: one["reach"] for one in api.get("/agents").json()["items"]} == {
        "browser": "can_stop",
        "coder": "can_stop",
    }
