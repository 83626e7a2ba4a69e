"""Messages of people for agents: handed out once, with a verdict, and only then shown as delivered."""

from __future__ import annotations

import pytest

from detection.models import AuditEntry
from detection.selectors import containments


def leave(api, text="Use the staging table.", **to):
    answer = api.post("/agent-messages", {"text": text, **to})
    assert answer.status_code == 201, answer.text
    return answer.json()


def state(api, message):
    (found,) = [one for one in api.get("/agent-messages").json()["items"] if one["id"] == message["id"]]
    return found["state"], found["delivered_to"]


def test_a_session_gets_its_message_once_with_its_next_call(api, as_other):
    api.call("a")
    message = leave(api, session="a")
    assert state(api, message) == ("waiting", None)
    api.post("/guard", {"session": "a", "results": [{"call_id": "call-0", "content": "x"}]})
    assert api.call("b").json()["decision"] == "allow"
    assert as_other.call("a").json()["decision"] == "allow"
    assert state(api, message) == ("waiting", None)
    (verdict,) = api.call("a", arguments={"q": "2"}).json()["verdicts"]
    assert verdict["decision"] == "warn"
    assert verdict["message"] == "Message from an operator: Use the staging table."
    assert state(api, message) == ("delivered", "a")
    assert api.call("a", arguments={"q": "3"}).json()["decision"] == "allow"
    actions = AuditEntry.objects.filter(subject=message["id"]).order_by("id").values_list("action", flat=True)
    assert [*actions] == ["agent_message.leave", "agent_message.deliver"]


def test_the_next_session_of_an_agent_gets_it(api):
    message = leave(api, agent="support")
    assert api.call("x", agent="other").json()["decision"] == "allow"
    assert "staging" in api.call("y", agent="support").json()["verdicts"][0]["message"]
    assert api.call("z", agent="support").json()["decision"] == "allow"
    assert state(api, message) == ("delivered", "y")


def test_messages_that_nobody_fetches_keep_no_other_from_its_agent(api, monkeypatch):
    monkeypatch.setattr(containments, "MAX_MESSAGES", 2)
    for number in range(3):
        leave(api, session=f"gone-{number}")
    message = leave(api, session="a")
    assert "staging" in api.call("a").json()["verdicts"][0]["message"]
    assert state(api, message) == ("delivered", "a")


def test_the_same_call_sent_again_has_the_message_again(api):
    leave(api, session="a")
    call = {"call_id": "c-1", "tool": "t"}
    texts = [api.post("/guard", {"session": "a", "calls": [call]}).json()["verdicts"][0] for _ in range(2)]
    assert [(one["decision"], one["duplicate"]) for one in texts] == [("warn", False), ("warn", True)]
    assert texts[0]["message"] == texts[1]["message"]


def test_it_comes_with_a_block_and_waits_for_the_end_of_a_hold(api):
    api.post("/containments", {"scope": "tool", "value": "deploy", "reaction": "block"})
    leave(api, session="a", text="Read the runbook.")
    (verdict,) = api.call("a", tool="deploy").json()["verdicts"]
    assert verdict["decision"] == "block"
    assert verdict["message"].endswith("Message from an operator: Read the runbook.")
    message = leave(api, session="a")
    found = api.post("/containments", {"scope": "project", "reaction": "hold"}).json()
    assert api.call("a").json()["decision"] == "hold"
    assert state(api, message)[0] == "waiting"
    api.delete(f"/containments/{found['id']}")
    assert "staging" in api.call("a").json()["verdicts"][0]["message"]


@pytest.mark.parametrize("host", ["claude-code", "codex", "gemini-cli"])
def test_hooks_hand_it_out(api, host):
    from tests.api.test_hooks import BEFORE, HookedAgent

    agent = HookedAgent(api, host)
    agent.before()
    message = leave(api, session=BEFORE[host]["session_id"])
    answers = [agent.before(), agent.after()]
    assert str(answers).count("Use the staging table.") >= 1
    assert state(api, message)[0] == "delivered"
    assert "staging" not in str([agent.before(), agent.after()])


def test_events_deliver_nothing(api):
    message = leave(api, session="w")
    api.post("/events", {"type": "call", "session": "w", "tool": "t"})
    assert state(api, message) == ("waiting", None)


def test_a_waiting_message_can_be_withdrawn_and_a_delivered_one_cannot(api, as_other):
    message = leave(api, session="a")
    assert as_other.delete(f"/agent-messages/{message['id']}").status_code == 404
    assert api.delete(f"/agent-messages/{message['id']}").json()["state"] == "withdrawn"
    assert api.call("a").json()["decision"] == "allow"
    second = leave(api, session="a")
    api.call("a", arguments={"q": "2"})
    assert api.delete(f"/agent-messages/{second['id']}").json()["code"] == "delivered"


@pytest.mark.parametrize(
    "body", [{"text": "x"}, {"text": "x", "session": "a", "agent": "b"}, {"text": " ", "session": "a"}]
)
def test_a_message_needs_a_text_and_one_recipient(api, body):
    assert api.post("/agent-messages", body).status_code == 422
