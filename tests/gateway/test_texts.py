"""Texts of the model: repeated answers without a call, and text that repeats itself within one answer."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from detection.engine.scopes import PROJECT
from detection.gateway.protocols.answer_text import CUT, KEPT_CHARACTERS, BoundedText
from detection.models import Event, Incident
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from tests.support.model_answers import PATHS, answered, call, chat_chunk, sse
from tests.support.model_server import of_events

from .agents import Agent, documents
from .conftest import World, wait_for
from .forms import FORMS, forms_in_turns

SENTENCE = "I will write the document now."
DEGENERATE = "the court of the land " * 60
PROSE = " ".join(f"Chapter {number} has {number * 7} pages and {number * 3} notes." for number in range(200))
STREAMS = [shape for shape, is_stream in FORMS if is_stream]


def texts():
    return list(Event.objects.filter(type="message", role="assistant").values_list("content", flat=True))


def converse(agent, world, answers):
    """Let the user say the same after each answer; return once all are recorded."""
    for number, text in enumerate(answers, 1):
        world.model.script = lambda asked, text=text: answered(asked, agent.shape, text)
        agent.say("continue")
        agent.turn()
        wait_for(lambda number=number: len(texts()) == number)


@forms_in_turns
@pytest.mark.parametrize("text", [SENTENCE, ""])
def test_the_third_equal_answer_without_a_call_is_an_incident(world: World, shape, is_stream, text):
    agent = Agent(world, shape, is_stream)
    converse(agent, world, [text] * 2)
    assert not Incident.objects.exists()
    world.model.script = lambda asked: answered(asked, shape, text)
    agent.say("continue")
    agent.turn()
    wait_for(Incident.objects.exists)
    assert Incident.objects.get().kind == "talk"
    assert {one.strip() for one in texts()} == {text}


@forms_in_turns
def test_answers_with_work_in_between_or_in_other_words_are_no_incident(world: World, shape, is_stream):
    agent = Agent(world, shape, is_stream)
    converse(agent, world, ["The draft is ready.", "All tests pass now, thanks to you.", "Nothing is left."])
    for number in range(4):
        world.model.script = lambda asked, n=number: answered(asked, shape, SENTENCE, [call(q=f"page {n}")])
        agent.turn(result=lambda one: f"{one[2]['q']} found")
    world.model.script = lambda asked: answered(asked, shape, PROSE)
    agent.turn()
    wait_for(lambda: len(texts()) == 4)
    assert not Incident.objects.exists()


@forms_in_turns
@pytest.mark.parametrize("calls", [[], [("call_1", "search", {"q": "x"})]])
def test_an_answer_that_repeats_itself_is_passed_on_and_is_an_incident(world: World, shape, is_stream, calls):
    world.model.script = lambda asked: answered(asked, shape, f"First. {DEGENERATE}", calls)
    agent = Agent(world, shape, is_stream)
    agent.say("continue")
    given = agent.turn()
    assert given.text.split() == f"First. {DEGENERATE}".split()
    wait_for(Incident.objects.exists)
    incident = Incident.objects.get()
    assert (incident.kind, incident.decision) == ("degenerate", "warn")
    assert len(given.calls) == len(calls)


def thinking(shape, number, words):
    """The beginning of a stream whose reasoning does not end."""
    events: list[dict[str, Any]]
    if shape == "openai":
        return [chat_chunk(number, {"role": "assistant", "content": ""})] + [
            chat_chunk(number, {"reasoning_content": f"{word} "}) for word in words
        ]
    if shape == "anthropic":
        message = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "usage": {},
        }
        block = {"type": "thinking", "thinking": "", "signature": ""}
        events = [{"type": "message_start", "message": message}]
        events.append({"type": "content_block_start", "index": 0, "content_block": block})
        for word in words:
            delta = {"type": "thinking_delta", "thinking": f"{word} "}
            events.append({"type": "content_block_delta", "index": 0, "delta": delta})
        return [sse(one, one["type"]) for one in events]
    response = {
        "id": f"resp_{number}",
        "object": "response",
        "status": "in_progress",
        "model": "m",
        "output": [],
    }
    item = {"id": f"rs_{number}", "type": "reasoning", "summary": []}
    events = [{"type": "response.created", "response": response}]
    events.append({"type": "response.output_item.added", "output_index": 0, "item": item})
    at = {"output_index": 0, "item_id": item["id"], "summary_index": 0}
    events += [{"type": "response.reasoning_summary_text.delta", **at, "delta": f"{word} "} for word in words]
    return [sse(one | {"sequence_number": place}, one["type"]) for place, one in enumerate(events)]


def cut_streams(world):
    overrides.save_override(world.project.pk, PROJECT, {"degenerate_reaction": "cut"}, SYSTEM, "for the test")


def ended(shape, raw):
    """Return why the stream ended, and all of its text."""
    events = list(documents(raw))
    if shape == "openai":
        assert raw.rstrip().endswith(b"data: [DONE]")
        deltas = [choice["delta"] for one in events for choice in one["choices"]]
        return events[-1]["choices"][0]["finish_reason"], "".join(one.get("content") or "" for one in deltas)
    if shape == "anthropic":
        assert events[-1]["type"] == "message_stop"
        opened = [one["index"] for one in events if one["type"] == "content_block_start"]
        closed = [one["index"] for one in events if one["type"] == "content_block_stop"]
        assert opened == closed == list(range(len(opened)))
        deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
        return events[-2]["delta"]["stop_reason"], "".join(one.get("text", "") for one in deltas)
    last = events[-1]
    numbers = [one["sequence_number"] for one in events]
    assert numbers == sorted(set(numbers))
    assert last["type"] == "response.incomplete"
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]
    text = "".join(part["text"] for item in done if item["type"] == "message" for part in item["content"])
    return last["response"]["incomplete_details"]["reason"], text


REASONS = {"openai": "length", "anthropic": "max_tokens", "responses": "max_output_tokens"}


@pytest.mark.parametrize("shape", STREAMS)
def test_a_stream_that_repeats_itself_is_cut_cleanly_and_the_model_server_writes_no_more(world: World, shape):
    cut_streams(world)

    def script(asked):
        answer = answered(asked, shape, f"First. {DEGENERATE}")
        # It would write for ever.
        last = -2 if shape == "openai" else -3
        return replace(answer, parts=answer.parts[:last], ends="silent")

    world.model.script = script
    agent = Agent(world, shape, is_stream=True)
    agent.say("continue")
    answer = raw_answer(agent)
    reason, text = ended(shape, answer)
    assert reason == REASONS[shape]
    assert text.startswith("First. the court of the land")
    assert text.endswith(CUT)
    assert 100 < len(text.split()) < 250
    wait_for(lambda: world.model.gone == 1)
    wait_for(Incident.objects.exists)
    assert Incident.objects.get().kind == "degenerate"


@pytest.mark.parametrize("shape", STREAMS)
def test_reasoning_that_repeats_itself_is_cut_and_the_conversation_goes_on(world: World, shape):
    cut_streams(world)
    words = ("wait , I should check again . " * 60).split()

    def script(asked):
        return of_events(thinking(shape, len(world.model.asked), words), ends="silent")

    world.model.script = script
    agent = Agent(world, shape, is_stream=True)
    agent.say("continue")
    reason, text = ended(shape, raw_answer(agent))
    assert (reason, text.strip()) == (REASONS[shape], CUT)
    wait_for(Incident.objects.exists)
    assert Incident.objects.get().kind == "degenerate"
    if shape == "anthropic":  # the model server rejects reasoning without a signature
        block = {"type": "thinking", "thinking": "wait, I should", "signature": ""}
        content = [block, {"type": "text", "text": f"\n\n{CUT}"}]
        agent.messages.append({"role": "assistant", "content": content})
        agent.say("go on")
        world.model.script = lambda asked: answered(asked, shape, "Done.")
        agent.turn()
        assert [one["type"] for one in world.model.asked[-1].document["messages"][-2]["content"]] == ["text"]


@pytest.mark.parametrize("shape", STREAMS)
@pytest.mark.parametrize("text", [PROSE, SENTENCE])
def test_other_streams_are_not_cut(world: World, shape, text):
    cut_streams(world)
    world.model.script = lambda asked: answered(asked, shape, text)
    agent = Agent(world, shape, is_stream=True)
    agent.say("continue")
    assert agent.turn().text.split() == text.split()
    wait_for(lambda: len(texts()) == 1)
    assert not Incident.objects.exists()


def raw_answer(agent):
    backend, path = PATHS[agent.shape]
    key = "input" if agent.shape == "responses" else "messages"
    with agent.world.http(backend, **{"LoopGuard-Session": agent.session}) as http:
        answer = http.post(path, json={"model": "gpt-x", "stream": True, key: agent.messages})
    assert answer.status_code == 200
    return answer.content


def test_of_a_long_text_the_beginning_and_the_end_are_kept_in_bounded_memory():
    text = BoundedText()
    for number in range(200_000):
        text.add(f"word{number} ")
    assert len(text.excerpt) <= 2 * KEPT_CHARACTERS + 3
    assert text.excerpt.startswith("word0 word1 ")
    assert text.excerpt.endswith("word199999 ")
    short = BoundedText()
    for part in ("a" * 7_000, "b" * 7_000):
        short.add(part)
    assert short.excerpt == short.whole == "a" * 7_000 + "b" * 7_000


HOSTILE = ["a\x00b", "\U00010348" * 300, "e\u0301" * 200, "a\u202eb\n", "x" * 5000]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:20])
@forms_in_turns
def test_no_name_that_a_client_or_a_model_gives_keeps_a_call_from_being_recorded(
    world: World, shape, is_stream, name
):
    agent = Agent(world, shape, is_stream, more={"model": name})
    told = [call(name or "t", call_id=f"{name}{number}", text=name) for number in range(2)]
    world.model.script = lambda asked: renamed(answered(asked, shape, "Let me see.", told), name)
    agent.ask()
    wait_for(lambda: Event.objects.filter(type="call").count() == 2)
    assert set(Event.objects.filter(type="call").values_list("decision", flat=True)) == {"allow"}


def renamed(answer, name):
    """The answer under another model and another id."""
    ids = rb'"((?:chatcmpl|msg|resp)[-_][\w-]+|gpt-x|claude-x)"'
    parts = [re.sub(ids, lambda found: json.dumps(name).encode(), part) for part in answer.parts]
    return replace(answer, parts=parts)
