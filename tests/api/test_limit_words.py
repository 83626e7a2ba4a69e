"""A limit that is reached is called by its name, through every entry point: it is no loop, and no other inputs help."""

import re

import pytest

from detection.engine.fields import RUNGS
from detection.engine.wire_shapes import SHAPES
from detection.models import AlertEvent, Approval, Session
from detection.services.alerting import rendering
from detection.services.audit import SYSTEM
from detection.services.policies.message_templates import save_template

UNTRUE = re.compile(r"\bloop|inputs|different tool|Reflect|why did the earlier calls", re.IGNORECASE)
LIMITS = {
    "budget_max_rounds": (3, "This run has reached its limit of 2 rounds."),
    "budget_max_calls": (3, "This run has reached its limit of 2 calls."),
    "budget_max_tokens": (2000, "This run has reached its limit of 2,000 tokens."),
    "budget_max_cost_usd": (5, "This run has reached its limit of 5 US dollars."),
    "session_budget_max_calls": (3, "This session has reached its limit of 2 calls."),
    "session_budget_max_tokens": (2000, "This session has reached its limit of 2,000 tokens."),
    "session_budget_max_cost_usd": (5, "This session has reached its limit of 5 US dollars."),
    "family_budget_max_cost_usd": (
        5,
        "The agents of this task have together reached their limit of 5 US dollars.",
    ),
}
KINDS = {"budget": "run", "session_budget": "session", "family_budget": "family"}


def set_limit(api, setting, value, rungs):
    kind = setting.partition("_max_")[0]
    values = {f"{kind}_enabled": True, f"{kind}_ladder": rungs, setting: value, "budget_soft_rounds": False}
    assert api.put("/overrides", {"values": values}).status_code in (200, 201)


def ask(api, number, session="s-1", shape="text", **more):
    """Ask about a call that differs from all others, after its result."""
    body = {
        "session": session,
        "results": [{"call_id": f"{session}-{number - 1}", "content": f"page {number - 1} of the book"}],
        "calls": [{"call_id": f"{session}-{number}", "tool": "read_page", "arguments": {"page": number},
                   "usage": {"input_tokens": 1000, "cost_usd": 2.5}}],
        **more,
    }  # fmt: skip
    return api.post(f"/guard?render={shape}", body).json()["verdicts"][0]


def spend(api, setting, shape="text"):
    """Return the first verdict with a message, of a run that always does something new."""
    if setting.startswith("family"):
        ask(api, 1, "parent")
        return next(
            one for n in range(1, 6) if (one := ask(api, n, "s-1", shape, parent_session="parent"))["message"]
        )
    return next(one for n in range(1, 6) if (one := ask(api, n, shape=shape))["message"])


@pytest.mark.parametrize("setting", LIMITS)
@pytest.mark.parametrize("rung", [one for one in RUNGS if one != "observe"])
def test_each_reaction_to_a_limit_names_it(api, setting, rung):
    value, named = LIMITS[setting]
    set_limit(api, setting, value, [rung])
    message = spend(api, setting)["message"]
    assert named.rstrip(".").lower() in message.lower()
    assert not UNTRUE.search(message), message


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rung", ["warn", "block", "stop"])
def test_each_wire_shape_says_the_same(api, shape, rung):
    set_limit(api, "session_budget_max_cost_usd", 5, [rung])
    verdict = spend(api, "session_budget_max_cost_usd", shape)
    for text in (verdict["message"], str(verdict["rendered"]).replace("loopguard", "")):
        assert not UNTRUE.search(text), text
    assert "his session has reached its limit of 5 US dollars" in verdict["message"]


def test_a_stop_after_blocks_does_not_speak_of_guidance(api):
    set_limit(api, "session_budget_max_calls", 3, ["block", "stop"])
    messages = [ask(api, number)["message"] for number in range(1, 8)]
    assert messages[-1] == (
        "This session has reached its limit of 2 calls. No further call runs. Only a person can raise this limit."
    )


@pytest.mark.parametrize("host", ["claude-code", "codex", "gemini-cli", "copilot", "opencode"])
def test_hooks_name_the_limit(api, host):
    set_limit(api, "session_budget_max_calls", 2, ["block"])
    before = {"gemini-cli": "BeforeTool", "opencode": "tool.execute.before"}.get(host, "PreToolUse")
    answers = [
        api.post(f"/hooks/{host}", {"session_id": "s-1", "hook_event_name": before, "cwd": "/src",
                                    "tool_name": "Read", "tool_input": {"file_path": f"/src/{number}"}}).text
        for number in range(3)
    ]  # fmt: skip
    assert "This session has reached its limit of 1 call." in answers[-1]
    assert not UNTRUE.search(answers[-1].replace("loopguard", ""))


@pytest.mark.parametrize("unattended", ["block", "stop"])
def test_an_approval_that_nobody_decided_names_the_limit(api, unattended):
    set_limit(api, "session_budget_max_cost_usd", 5, ["ask"])
    api.put("/overrides", {"values": {"answer_timeout_seconds": 1, "unattended_reaction": unattended,
            "session_budget_enabled": True, "session_budget_ladder": ["ask"], "session_budget_max_cost_usd": 5}})  # fmt: skip
    held = spend(api, "session_budget_max_cost_usd")
    assert held["decision"] == "hold"
    Approval.objects.update(deadline="2020-01-01T00:00:00Z")
    message = api.get(f"/approvals/{held['approval']['id']}").json()["message"]
    assert "This session has reached its limit of 5 US dollars." in message
    assert not UNTRUE.search(message), message


@pytest.mark.parametrize("rung", ["warn", "block", "stop"])
def test_alerts_name_the_limit_and_what_was_used(api, rung):
    set_limit(api, "session_budget_max_cost_usd", 6, [rung])
    spend(api, "session_budget_max_cost_usd")
    (event,) = AlertEvent.objects.filter(type="opened")
    text = rendering.sentence(event.type, event.actor, event.facts)
    assert text.startswith("Session limit reached: this session has reached its limit of 6 US dollars; ")
    assert "7.5 used" in text
    for event_type in ("escalated", "ended", "still_open"):
        assert not UNTRUE.search(rendering.sentence(event_type, "system", event.facts))


def test_a_loop_is_still_called_one(api):
    api.put("/overrides", {"values": {"mode": "break"}})
    message = api.loop()["verdicts"][0]["message"]
    assert "loop" in message
    (event,) = AlertEvent.objects.filter(type="opened")
    assert rendering.sentence(event.type, event.actor, event.facts).startswith("Loop detected: ")


def test_the_session_is_shown_at_its_limit(api):
    set_limit(api, "session_budget_max_calls", 2, ["block"])
    for number in range(1, 4):
        ask(api, number)
    assert Session.objects.get(external_id="s-1").meter_kind == "session_budget"


@pytest.mark.parametrize(
    ("setting", "value", "meters", "reading", "used"),
    [
        ("budget_max_calls", 3, [(1, 2), (2, 2), (2, 2), (2, 2)], (2, 2), "2 used"),
        ("session_budget_max_calls", 3, [(1, 2), (2, 2), (2, 2), (2, 2)], (2, 2), "2 used"),
        ("budget_max_rounds", 3, [(1, 2), (2, 2), (2, 2), (2, 2)], (2, 2), "2 used"),
        ("session_budget_max_tokens", 2500, [(1000, 2500), (2000, 2500), (3000, 2500), (4000, 2500)],
         (3000, 2500), "3,000 used"),
    ],
)  # fmt: skip
def test_one_limit_is_read_alike_everywhere(api, project, setting, value, meters, reading, used):
    set_limit(api, setting, value, ["block"])
    save_template(project.pk, "block", "", "No $tool after $count of $limit.", SYSTEM)
    found, said = [], []
    for number in range(1, 5):
        said.append(ask(api, number)["message"])
        meter = api.get("/sessions/s-1").json()["meter"]
        found.append((meter["count"], meter["limit"]))
    assert found == meters
    assert said[2] == "No read_page after {} of {}.".format(*reading)
    (event,) = AlertEvent.objects.filter(type="opened")
    assert (event.facts["count"], event.facts["limit"]) == reading
    assert used in rendering.sentence(event.type, event.actor, event.facts)
    (incident,) = api.get("/incidents").json()["items"]
    assert incident["limit"] == reading[1]


def test_a_limit_of_one_call_refuses_all_sessions_of_an_agent_and_no_others(api):
    """As docs/reactions.md advises."""
    values = {
        "session_budget_enabled": True,
        "session_budget_max_calls": 1,
        "session_budget_ladder": ["stop"],
    }
    for session in ("s-1", "s-2"):
        assert ask(api, 1, session, agent="fleet")["decision"] == "allow"
    assert api.put("/agent-overrides/fleet", {"values": values}).status_code in (200, 201)
    assert [ask(api, 2, one, agent="fleet")["decision"] for one in ("s-1", "s-2", "new")] == ["stop"] * 3
    assert ask(api, 1, "other", agent="other")["decision"] == "allow"
    api.delete("/agent-overrides/fleet")
    assert [ask(api, 3, one, agent="fleet")["decision"] for one in ("s-1", "s-2", "new")] == ["allow"] * 3
