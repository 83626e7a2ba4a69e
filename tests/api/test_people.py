"""What is a person's message, through hooks, events and lists of messages: it begins a run and carries commands."""

from typing import Any

import pytest

from detection.engine import snapshot
from detection.models import Event, Session
from detection.services.sessions.evaluation import evaluate
from detection.services.sessions.locked_session import locked_session

pytestmark = pytest.mark.django_db

REPEATED = {"session_id": "s-1", "cwd": "/src", "tool_name": "Read", "tool_input": {"file_path": "/src/a"}}


@pytest.fixture
def advisory(api):
    api.put("/overrides", {"values": {"preset": "advisory"}})
    return api


def prompt(api, text, **more):
    body = {"session_id": "s-1", "hook_event_name": "UserPromptSubmit", "prompt": text, **more}
    assert api.post("/hooks/claude-code", body).status_code == 200
    for session in Session.objects.all():
        evaluate(session.key)


def works(api, number):
    body = REPEATED | {"hook_event_name": "PreToolUse", "tool_use_id": f"t{number}"}
    api.post("/hooks/claude-code", body)
    answer = {"hook_event_name": "PostToolUse", "tool_use_id": f"t{number}", "tool_response": "text"}
    api.post("/hooks/claude-code", REPEATED | answer)


def decisions():
    return [row.decision for row in Event.objects.filter(type="call").order_by("seq")]


def test_each_prompt_of_a_hook_begins_a_run(advisory):
    for number in range(4):
        prompt(advisory, f"look at it, part {number}", prompt_id=f"p{number}")
        works(advisory, number)
    assert decisions() == ["allow"] * 4


def test_the_same_prompt_typed_again_begins_a_run_however_often(advisory):
    for number in range(8):
        prompt(advisory, "again")
        works(advisory, number)
    assert decisions() == ["allow"] * 8


@pytest.mark.parametrize("repeats_text", [False, True])
def test_a_host_that_repeats_its_prompt_after_each_tool_begins_no_run(advisory, repeats_text):
    text = "look at it !/set(tool-loop-max-repeats=+1)"
    prompt(advisory, text, prompt_id="p1")
    for number in range(3):
        works(advisory, number)
        prompt(advisory, text if repeats_text else "", prompt_id="p1")
    assert decisions() == ["allow", "allow", "warn"]
    assert Session.objects.get().policy_values == {"max_repeats": 3}


def test_empty_prompts_without_an_id_begin_no_run(advisory):
    prompt(advisory, "look at it")
    for number in range(3):
        works(advisory, number)
        prompt(advisory, " \n")
    assert decisions() == ["allow", "warn", "warn"]


@pytest.mark.parametrize(
    ("message", "is_person"),
    [
        ({"content": "look at it"}, True),
        ({}, True),
        ({"content": "Tool call error: why does it say so?"}, True),
        ({"content": ""}, False),
        ({"content": "look at it", "role": "program"}, False),
        ({"content": "look at it", "role": "assistant"}, False),
    ],
)
def test_a_reported_message_is_a_person_s_unless_it_is_empty(advisory, message, is_person):
    for number in range(3):
        advisory.post("/events", {"type": "message", "session": "s-1", **message})
        advisory.call("s-1", call_id=f"c{number}")
    assert decisions() == (["allow"] * 3 if is_person else ["allow", "warn", "warn"])


@pytest.mark.parametrize("shape", ["openai", "anthropic", "responses"])
@pytest.mark.parametrize(
    ("text", "is_person"), [("and the next one", True), ("Tool call error: none found", False)]
)
def test_a_list_of_messages_tells_people_from_programs(advisory, shape, text, is_person):
    messages: list[dict[str, Any]] = [{"role": "user", "content": "look it up"}]
    found = []
    for number in range(3):
        name, arguments = "search", '{"q": "a"}'
        block: dict[str, Any]
        result: list[dict[str, Any]]
        if shape == "openai":
            function = {"name": name, "arguments": arguments}
            call = [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
                }
            ]
            result = [{"role": "tool", "tool_call_id": f"c{number}", "content": "0 hits"}]
        elif shape == "anthropic":
            block = {
                "type": "tool_use",
                "id": f"c{number}",
                "name": name,
                "input": {"q": "a"},
            }
            call = [{"role": "assistant", "content": [block]}]
            block = {"type": "tool_result", "tool_use_id": f"c{number}", "content": "0 hits"}
            result = [{"role": "user", "content": [block]}]
        else:
            call = [{"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": arguments}]
            result = [{"type": "function_call_output", "call_id": f"c{number}", "output": "0 hits"}]
        messages += call
        answer = advisory.post("/guard", {"session": "s-1", "shape": shape, "messages": messages}).json()
        found.append(answer["decision"])
        messages += [*result, {"role": "assistant", "content": "Nothing."}, {"role": "user", "content": text}]
    assert found == (["allow"] * 3 if is_person else ["allow", "warn", "warn"])
    assert [row.role for row in Event.objects.filter(type="message").order_by("seq")][1:] == [
        "user" if is_person else "program"
    ] * 2


def test_a_state_that_is_rebuilt_has_the_same_runs(advisory):
    for number in range(4):
        advisory.post(
            "/events", {"type": "message", "session": "s-1", "content": "and the next" * (number % 2)}
        )
        advisory.call("s-1", call_id=f"c{number}")
        advisory.call("s-1", call_id=f"d{number}")
    with locked_session(Session.objects.get().key) as locked:
        kept = snapshot.dump(locked.tracker)
        locked.rebuild_tracker(())
        assert snapshot.dump(locked.tracker) == kept
    assert decisions() == ["allow", "warn", "allow", "warn", "warn", "warn", "allow", "warn"]
