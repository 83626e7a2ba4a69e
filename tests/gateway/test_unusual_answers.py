"""Answers that model servers do give: fragments in turns, several choices, ids used again, nothing as content."""

import json
from typing import Any

import pytest

from detection.engine.scopes import PROJECT, Scope
from detection.services.audit import SYSTEM
from detection.services.policies import message_templates, overrides
from tests.support.model_answers import CHAT_USAGE, answered, call, chat_chunk, chat_whole, sse
from tests.support.model_server import of_events, of_json

from .agents import Agent, chat_stream, documents
from .conftest import World
from .test_guarding import calls_of, decisions_of


def fragment(number, place, arguments="", **first):
    function = {"arguments": arguments} | ({"name": first["name"]} if first else {})
    named = {"id": first["id"], "type": "function"} if first else {}
    return chat_chunk(number, {"tool_calls": [{"index": place, **named, "function": function}]})


def interleaved(calls, number=7):
    """All calls begin, then their arguments arrive in turns, a few characters at a time."""
    yield chat_chunk(number, {"role": "assistant", "content": None})
    for place, one in enumerate(calls):
        yield fragment(number, place, id=one[0], name=one[1])
    texts = [json.dumps(one[2]) for one in calls]
    for at in range(0, max(map(len, texts)), 3):
        for place, text in enumerate(texts):
            if text[at : at + 3]:
                yield fragment(number, place, text[at : at + 3])
    yield chat_chunk(number, {}, "tool_calls")
    yield sse(
        {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "choices": [], "usage": CHAT_USAGE}
    )
    yield sse("[DONE]")


def places(raw):
    """The index of each fragment, without repetitions in a row."""
    found = [
        part["index"]
        for chunk in documents(raw)
        for choice in chunk["choices"]
        for part in choice["delta"].get("tool_calls") or []
    ]
    return [place for at, place in enumerate(found) if not at or found[at - 1] != place]


def test_calls_whose_fragments_take_turns_are_sent_one_after_the_other(world: World):
    calls = [call("read", path=f"{number}.txt") for number in range(3)]
    world.model.script = lambda asked: of_events(list(interleaved(calls)))
    given = Agent(world, is_stream=True).ask()
    assert given.calls == calls
    assert places(given.raw) == [0, 1, 2]
    assert decisions_of() == ["allow"] * 3


def test_a_blocked_call_among_fragments_in_turns_leaves_no_gap(world: World):
    message_templates.save_template(world.project.pk, "chance", "", "REFUSED $tool.", SYSTEM)
    overrides.save_override(
        world.project.pk, Scope("tool", pattern="read"), {}, exempt=True, actor=SYSTEM, note="for the test"
    )
    world.model.script = lambda asked: of_events(
        list(interleaved([call("read", path="a"), call(), call("read", path="b")], len(world.model.asked)))
    )
    agent = Agent(world, is_stream=True)
    for _ in range(3):
        agent.turn(lambda one: "0 hits" if one[1] == "search" else f"text of {one[0]}")
    given = agent.turn()
    assert [one[1] for one in given.calls] == ["read", "read"]
    assert places(given.raw) == [0, 1]


def two_choices(asked, first, second):
    """Each choice has calls of its own."""
    if not asked.document.get("stream"):
        document = chat_whole(9, "", first)
        document["choices"].append(chat_whole(9, "", second)["choices"][0] | {"index": 1})
        return of_json(document)
    events = [chat_chunk(9, {"role": "assistant", "content": ""}, index=index) for index in (0, 1)]
    for index, calls in enumerate((first, second)):
        for place, one in enumerate(calls):
            function = {"name": one[1], "arguments": json.dumps(one[2])}
            whole = {"index": place, "id": one[0], "type": "function", "function": function}
            events.append(chat_chunk(9, {"tool_calls": [whole]}, index=index))
    events += [chat_chunk(9, {}, "tool_calls", index=index) for index in (0, 1)]
    return of_events([*events, sse("[DONE]")])


def choices_of(given, is_stream):
    """Tools and reason of the end by choice."""
    if not is_stream:
        return {
            choice["index"]: (
                [one["function"]["name"] for one in choice["message"].get("tool_calls") or []],
                choice["finish_reason"],
            )
            for choice in json.loads(given)["choices"]
        }
    tools: dict[int, list[Any]] = {0: [], 1: []}
    ends: dict[int, Any] = {}
    for chunk in documents(given):
        for choice in chunk["choices"]:
            for part in choice["delta"].get("tool_calls") or []:
                tools[choice["index"]].append(part["function"]["name"])
            ends[choice["index"]] = choice["finish_reason"] or ends.get(choice["index"])
    return {index: (tools[index], ends[index]) for index in tools}


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_calls_of_several_choices_are_evaluated_together(world: World, is_stream):
    world.model.script = lambda asked: two_choices(
        asked, [call("read", path="a"), call("list", path="b")], [call("read", path="c")]
    )
    request = {"model": "m", "n": 2, "stream": is_stream, "messages": [{"role": "user", "content": "x"}]}
    http = world.http(**{"LoopGuard-Session": "s-1"})
    raw = http.post("/chat/completions", json=request).content
    assert choices_of(raw, is_stream) == {
        0: (["read", "list"], "tool_calls"), 1: (["read"], "tool_calls"),
    }  # fmt: skip
    assert [row.tool for row in calls_of()] == ["read", "list", "read"]
    assert len({row.round for row in calls_of()}) == 1


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_choice_whose_calls_are_blocked_becomes_a_text(world: World, is_stream):
    values = {"preset": "proxy", "mode": "block", "max_repeats": 2}
    overrides.save_override(world.project.pk, PROJECT, values, SYSTEM, "for the test")
    world.model.script = lambda asked: two_choices(asked, [call()], [call()])
    request = {"model": "m", "n": 2, "stream": is_stream, "messages": [{"role": "user", "content": "x"}]}
    http = world.http(**{"LoopGuard-Session": "s-1"})
    raw = http.post("/chat/completions", json=request).content
    assert choices_of(raw, is_stream) == {0: (["search"], "tool_calls"), 1: ([], "stop")}
    assert decisions_of() == ["allow", "block"]
    assert len(world.model.asked) == 1, "one of several choices is not asked for again"


@pytest.mark.parametrize("content", [None, ""])
def test_calls_without_content_pass_and_count(world: World, content):
    def script(asked):
        document = chat_whole(5, "", [call(q=f"{len(world.model.asked)}")])
        document["choices"][0]["message"]["content"] = content
        return of_json(document)

    world.model.script = script
    agent = Agent(world)
    for _ in range(3):
        assert agent.turn(lambda one: f"found {one[2]}").calls
    assert [one["content"] for one in agent.messages if one["role"] == "assistant"] == [content] * 3
    assert decisions_of() == ["allow"] * 3


def test_a_stream_without_content_or_with_null_arguments_passes(world: World):
    events = [
        chat_chunk(1, {"role": "assistant", "content": None, "tool_calls": None}),
        chat_chunk(
            1, {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "now"}}]}
        ),
        chat_chunk(1, {"tool_calls": [{"index": 0, "function": {"arguments": None}}]}),
        chat_chunk(1, {"content": None}, "tool_calls"),
        sse("[DONE]"),
    ]
    world.model.script = lambda asked: of_events(events)
    request = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    http = world.http(**{"LoopGuard-Session": "s-1"})
    assert http.post("/chat/completions", json=request).content == b"".join(events)
    assert [row.tool for row in calls_of()] == ["now"]


@pytest.mark.parametrize("shape", ["openai", "anthropic", "responses"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_ids_that_start_anew_with_each_answer_are_calls_of_their_own(world: World, shape, is_stream):
    def script(asked):
        turn = len(world.model.asked)
        calls = [call("read", "call_0", path=f"{turn}"), call("list", "call_1", path=f"{turn}")]
        return answered(asked, shape, "", calls if turn < 6 else [])

    world.model.script = script
    agent = Agent(world, shape, is_stream)
    agent.run(result=lambda one: f"text of {one[2]}")
    assert agent.runs == 10
    assert decisions_of() == ["allow"] * 10
    assert [row.tool for row in calls_of()] == ["read", "list"] * 5


def test_a_stream_in_pieces_of_a_byte_passes_as_it_came(world: World):
    parts: list[Any] = []

    def script(asked):
        answer = answered(asked, "openai", "Let me see.", [call()])
        parts[:] = answer.parts
        raw = answer.body
        answer.parts = [raw[at : at + 1] for at in range(len(raw))]
        return answer

    world.model.script = script
    given = Agent(world, is_stream=True).ask()
    assert given.raw == b"".join(parts)
    assert chat_stream(given.raw).calls
