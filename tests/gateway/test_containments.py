"""What is contained, through the gateway: each protocol has a clean end, and nobody else notices."""

import threading
import time

import pytest

from detection.engine.scopes import PROJECT
from detection.models import AgentMessage, Approval, Session
from detection.services import agent_messages
from detection.services.audit import SYSTEM, Actor
from detection.services.containments import containments
from detection.services.containments.containments import Wanted
from detection.services.policies import overrides
from tests.support.model_answers import PATHS, answered, call
from tests.support.model_server import Answer

from .agents import Agent
from .conftest import World, wait_for
from .forms import every_form, forms_in_turns

ANA = Actor("ana")
AGENT = {"LoopGuard-Agent": "support"}
ENDS = {
    "openai": {False: '"finish_reason":"stop"', True: "data: [DONE]"},
    "anthropic": {False: '"stop_reason":"end_turn"', True: "event: message_stop"},
    "responses": {False: '"status":"completed"', True: "event: response.incomplete"},
}


def contain(world, reaction="stop", scope="agent", value="support", **more):
    return containments.contain(world.project.pk, Wanted(scope, value, reaction, **more), ANA)


def calls_with_new_arguments(world, shape, text=""):
    world.model.script = lambda asked: answered(asked, shape, text, [call(q=f"{len(world.model.asked)}")])


@forms_in_turns
def test_the_model_is_not_asked_for_a_stopped_agent_and_others_go_on(world: World, shape, is_stream):
    calls_with_new_arguments(world, shape)
    agent = Agent(world, shape, is_stream, headers=AGENT)
    other = Agent(world, shape, is_stream, session="s-2")
    assert agent.turn().calls
    found = contain(world, reason="wrong orders")
    asked = len(world.model.asked)
    last = agent.turn()
    assert (last.calls, len(world.model.asked)) == ([], asked)
    assert "ana stopped the agent support in LoopGuard (wrong orders)" in last.text.lower().replace(
        "loopguard", "LoopGuard"
    )
    assert other.turn().calls
    assert Agent(world, shape, is_stream, session="s-3", headers=AGENT).turn().calls == []
    containments.lift(world.project.pk, found.public_id, ANA)
    agent.say("go on")
    assert agent.turn().calls


@forms_in_turns
def test_a_blocked_tool_is_refused_and_the_model_goes_on(world: World, shape, is_stream):
    contain(world, "block", "tool", "search")

    def script(asked):
        is_told = b"blocked the tool search" in asked.body
        return answered(asked, shape, "Done without it." if is_told else "", [] if is_told else [call()])

    world.model.script = script
    last = Agent(world, shape, is_stream, headers=AGENT).run()
    assert "Done without it." in last.text


@every_form
def test_an_answer_in_progress_ends_within_a_second(world: World, shape, is_stream):
    """A slow model server is cut off; the client has a whole answer of its protocol."""
    begun = threading.Event()

    def script(asked):
        whole = answered(asked, shape, "The first words, ")
        begun.set()
        parts = whole.parts[: len(whole.parts) - 2] if is_stream else ()
        return Answer(
            parts, headers=whole.headers, is_chunked=is_stream, ends="silent" if is_stream else "mute"
        )

    world.model.script = script
    given = []

    def ask():
        backend, path = PATHS[shape]
        key = "input" if shape == "responses" else "messages"
        request = {"model": "gpt-x", "stream": is_stream, key: [{"role": "user", "content": "write a book"}]}
        with world.http(backend, **AGENT, **{"LoopGuard-Session": "s-1"}) as http:
            given.append(http.post(path, json=request).text)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert begun.wait(10)
    time.sleep(0.3)  # the first words are on their way
    contain(world)
    asking.join(10)
    assert given, "the answer did not end"
    assert "stopped the agent support" in given[0]
    assert ENDS[shape][is_stream] in given[0]
    assert ("first" in given[0]) is is_stream
    wait_for(lambda: world.model.gone)


@forms_in_turns
def test_a_call_on_hold_ends_with_the_containment(world: World, shape, is_stream):
    values = {"mode": "ask", "attended": True, "max_repeats": 3}
    overrides.save_override(world.project.pk, PROJECT, values, SYSTEM, "for the test")
    world.model.script = lambda asked: answered(asked, shape, "", [call()])
    agent = Agent(world, shape, is_stream, headers=AGENT)
    given = []
    asking = threading.Thread(target=lambda: given.append(agent.run()), daemon=True)
    asking.start()
    wait_for(lambda: Approval.objects.filter(state="open").exists())
    contain(world)
    asking.join(10)
    assert "stopped the agent support" in given[0].text
    assert Approval.objects.get().decision == "stop"


@forms_in_turns
def test_a_call_that_a_containment_holds_runs_when_it_is_lifted(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(
        asked, shape, "", [call()] if len(world.model.asked) == 1 else []
    )
    found = contain(world, "hold")
    agent = Agent(world, shape, is_stream, headers=AGENT)
    asking = threading.Thread(target=agent.run, daemon=True)
    asking.start()
    wait_for(lambda: Approval.objects.filter(state="open").exists())
    assert agent.runs == 0
    containments.lift(world.project.pk, found.public_id, ANA)
    asking.join(10)
    assert agent.runs == 1


@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_key_is_contained_like_an_agent(world: World, is_revoked):
    calls_with_new_arguments(world, "openai")
    agent = Agent(world, "openai")
    assert agent.turn().calls
    found = contain(world, "stop", "key", world.key[3:13])
    if is_revoked:
        containments.lift(world.project.pk, found.public_id, ANA)
    assert bool(agent.turn().calls) is is_revoked


@every_form
def test_headers_give_the_session_its_tags_and_metadata(world: World, shape, is_stream):
    calls_with_new_arguments(world, shape)
    headers = {"LoopGuard-Tags": "risky, nightly", "LoopGuard-Metadata": '{"customer": "acme"}'}
    agent = Agent(world, shape, is_stream, headers=headers)
    assert agent.turn().calls
    session = Session.objects.get()
    assert (session.tags, session.metadata) == (["risky", "nightly"], {"customer": "acme"})
    assert b"risky" not in b"".join(str(asked.headers).encode() + asked.body for asked in world.model.asked)
    contain(world, "stop", "tag", "risky")
    assert agent.turn().calls == []
    invalid = Agent(world, shape, is_stream, session="s-2", headers={"LoopGuard-Metadata": "customer"})
    assert invalid.turn().calls


@forms_in_turns
def test_the_model_reads_a_message_of_a_person_with_its_next_result(world: World, shape, is_stream):
    calls_with_new_arguments(world, shape)
    agent = Agent(world, shape, is_stream)
    agent.turn()
    agent_messages.leave(world.project.pk, "Use the staging table.", ANA, session="s-1")
    agent.turn()
    agent.turn()
    agent.turn()
    read = [b"Use the staging table." in asked.body for asked in world.model.asked]
    assert read[:2] == [False, False]
    assert any(read[2:])
    assert AgentMessage.objects.get().delivered_to == "s-1"
