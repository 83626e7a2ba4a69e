"""In-chat commands through the gateway: executed, answered, and kept from the model."""

import json

import pytest

from detection.engine.policy import PROJECT
from detection.gateway import guarding
from detection.models import Event, Session
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from detection.services.sessions import actions
from tests.support.model_answers import answered, call
from tests.support.model_server import of_json

from .agents import Agent
from .conftest import World, database_away
from .forms import forms_in_turns

COMMAND = "!/set(tool-loop-max-repeats=6, tool-loop-mode=break)"
REPLY = "tool-loop-max-repeats is now 6; tool-loop-mode is now break."


def values_of(session="s-1"):
    return Session.objects.get(external_id=session).policy_values


def sent_to_model(world):
    return "\n".join(asked.body.decode() for asked in world.model.asked)


@forms_in_turns
def test_a_command_is_executed_and_answered_without_the_model(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(asked, shape, "Done.")
    agent = Agent(world, shape, is_stream)
    agent.run()
    agent.say(COMMAND)
    given = agent.run()
    assert (given.text, given.calls) == (REPLY, [])
    assert values_of() == {"max_repeats": 6, "mode": "break"}
    assert len(world.model.asked) == 1
    agent.say("now search")
    agent.run()
    sent = world.model.asked[-1].document["input" if shape == "responses" else "messages"]
    assert len(sent) == 3, "neither the command nor its reply is part of the conversation"
    assert "tool-loop" not in sent_to_model(world)
    event = Event.objects.exclude(reply="").get()
    assert (event.type, event.reply) == ("message", REPLY)


@forms_in_turns
def test_a_list_that_begins_with_an_unknown_setting_is_answered_with_the_error(
    world: World, shape, is_stream
):
    world.model.script = lambda asked: answered(asked, shape, "Done.")
    agent = Agent(world, shape, is_stream)
    agent.run()
    agent.say("!/set(foo=1, tool-loop-mode=chance)")
    given = agent.run()
    assert given.text.startswith("Unknown setting 'foo'. Known: tool-loop-detection")
    assert values_of() == {}
    assert len(world.model.asked) == 1
    agent.say("!/set(foo=1)")
    assert agent.run().text == "Done."
    assert "!/set(foo=1)" in sent_to_model(world)


@forms_in_turns
def test_the_reply_to_a_preset_names_what_stays(world: World, shape, is_stream):
    overrides.save_override(world.project.pk, PROJECT, {"max_repeats": 9}, SYSTEM)
    agent = Agent(world, shape, is_stream)
    agent.messages.clear()
    agent.say("!/set(tool-loop-preset=proxy)")
    assert agent.run().text == (
        "tool-loop-preset is now proxy; tool-loop-max-repeats stays 9 (from project)."
    )


@forms_in_turns
def test_a_command_beside_other_text_precedes_the_answer(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(
        asked, shape, "Sure.", [call()] if len(world.model.asked) == 1 else []
    )
    agent = Agent(world, shape, is_stream)
    agent.messages.clear()
    agent.say(f"Search for it. {COMMAND} Be quick.")
    given = agent.turn()
    assert given.text.startswith(f"[LoopGuard: {REPLY}]")
    assert "Sure." in given.text
    assert [one[1] for one in given.calls] == ["search"]
    agent.run()
    assert values_of() == {"max_repeats": 6, "mode": "break"}
    assert "tool-loop" not in sent_to_model(world)
    first, second = (
        one.document["input" if shape == "responses" else "messages"] for one in world.model.asked
    )
    assert second[: len(first)] == first
    assert "Search for it." in json.dumps(first)
    assert "Be quick." in json.dumps(first)
    assert "Sure." in json.dumps(second)
    assert Event.objects.exclude(reply="").count() == 1


@forms_in_turns
def test_a_blocked_answer_after_a_command_is_asked_for_again(world: World, shape, is_stream):
    """What precedes the answer is sent once, and what follows is numbered after it."""

    def script(asked):
        again = len(world.model.asked) >= 4
        return answered(asked, shape, "Hm.", [call("other", n=1)] if again else [call()])

    world.model.script = script
    agent = Agent(world, shape, is_stream)
    for _ in range(2):
        agent.turn()
    agent.say("go on !/set(tool-loop-result-aware=false, tool-loop-mode=chance, tool-loop-max-repeats=3)")
    given = agent.turn()
    assert given.text.count("[LoopGuard: ") == 1
    assert [one[1] for one in given.calls] == ["other"]
    agent.turn()
    assert "LoopGuard: " not in sent_to_model(world)


@forms_in_turns
def test_a_wrong_command_is_answered_with_its_error(world: World, shape, is_stream):
    agent = Agent(world, shape, is_stream)
    agent.messages.clear()
    agent.say("!/set(tool-loop-max-repeats=lots) !/help()")
    assert "tool-loop-max-repeats" in agent.run().text
    assert values_of() == {}
    assert not world.model.asked


@forms_in_turns
def test_a_request_that_is_sent_again_executes_once(world: World, shape, is_stream):
    """Its reply is what is in effect."""
    agent = Agent(world, shape, is_stream)
    agent.say(COMMAND)
    texts = []
    for retry in range(4):
        agent.headers = {"x-stainless-retry-count": str(retry)}
        texts.append(agent.ask().text)
        if retry == 1:
            actions.set_policy(world.project.pk, "s-1", {"max_repeats": 9}, SYSTEM)
    assert texts == [REPLY] * 2 + [REPLY.replace("6", "9")] * 2
    assert values_of() == {"max_repeats": 9, "mode": "break"}


@pytest.mark.parametrize("is_stream", [False, True])
def test_commands_are_found_beside_what_programs_add_to_a_prompt(world: World, is_stream):
    world.model.script = lambda asked: answered(asked, "anthropic", "Done.")
    agent = Agent(world, "anthropic", is_stream)
    reminder = {"type": "text", "text": "<system-reminder>Today is Monday.</system-reminder>"}
    agent.messages = [{"role": "user", "content": [reminder, {"type": "text", "text": COMMAND}]}]
    assert agent.run().text == REPLY
    assert not world.model.asked


@pytest.mark.parametrize("shape", ["openai", "anthropic"])
def test_commands_without_a_session_take_effect_with_the_first_call(world: World, shape):
    world.model.script = lambda asked: answered(
        asked, shape, "", [call()] if len(world.model.asked) == 1 else []
    )
    agent = Agent(world, shape, session="")
    agent.say(COMMAND)
    assert "first tool call" in agent.run().text
    agent.say("now search")
    agent.run()
    assert Session.objects.get().policy_values == {"max_repeats": 6, "mode": "break"}
    assert "tool-loop" not in sent_to_model(world)


def test_a_command_of_a_stored_conversation_is_not_continued_at_the_model_server(world: World):
    world.model.script = lambda asked: answered(asked, "responses", "Done.")

    def ask(text, **more):
        request = {"model": "gpt-x", "input": text, **more}
        return world.http().post("/responses", json=request).json()

    command = ask(COMMAND)
    first = ask("Search.", previous_response_id=command["id"])
    assert world.model.asked[0].document["previous_response_id"] is None
    between = ask("!/set(tool-loop-max-repeats=7)", previous_response_id=first["id"])
    ask("Again.", previous_response_id=between["id"])
    assert world.model.asked[1].document["previous_response_id"] == first["id"]
    assert len(world.model.asked) == 2
    assert Session.objects.get().policy_values == {"max_repeats": 7, "mode": "break"}


@forms_in_turns
def test_other_text_that_looks_like_a_command_passes(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(asked, shape, "Done.")
    agent = Agent(world, shape, is_stream)
    texts = ["!/set(model=gpt-x)", "What does !/unset do?", "x" * 2_000 + COMMAND]
    for text in texts:
        agent.say(text)
        agent.run()
    assert all(text in sent_to_model(world) for text in texts)


@forms_in_turns
def test_a_command_while_the_database_is_away_says_so(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(asked, shape, "Done.")
    agent = Agent(world, shape, is_stream)
    agent.run()
    agent.say(COMMAND)
    with database_away():
        assert agent.run().text == guarding.COMMAND_FAILED


def test_an_error_of_the_model_server_after_a_command_is_its_own(world: World):
    world.model.script = lambda asked: of_json({"error": {"message": "no"}}, 429)
    request = {"messages": [{"role": "user", "content": f"Search. {COMMAND}"}]}
    answer = world.http(**{"LoopGuard-Session": "s-1"}).post("/chat/completions", json=request)
    assert (answer.status_code, answer.json()) == (429, {"error": {"message": "no"}})
    assert values_of() == {"max_repeats": 6, "mode": "break"}
