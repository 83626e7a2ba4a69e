"""Tool calls in answers: evaluated once, blocked, held and stopped in each protocol, whole and as a stream."""

import json
import threading
import time
from typing import Any

import pytest
from django.db import connection

from detection.engine.scopes import PROJECT, Scope
from detection.models import Approval, Event, GatewayRewrite, Incident, Session
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM
from detection.services.policies import message_templates, overrides
from detection.services.sessions import actions
from tests.support.model_answers import answered, call

from .agents import Agent
from .conftest import World, wait_for
from .forms import every_form, forms_in_turns


def calls_of(session="s-1"):
    return list(Event.objects.filter(session__external_id=session, type="call").order_by("seq"))


def decisions_of(session="s-1"):
    return [row.decision for row in calls_of(session)]


def policy(world, **values):
    overrides.save_override(world.project.pk, PROJECT, values, SYSTEM, "for the test")


@every_form
def test_a_healthy_run_passes_byte_by_byte(world: World, shape, is_stream):
    sent: list[Any] = []

    def script(asked):
        number = len(sent)
        calls = [call(q=f"page {number}"), call("read", path=f"{number}.txt")] if number < 6 else []
        answer = answered(asked, shape, "Let me see." if number % 2 else "", calls)
        sent.append(answer.body)
        return answer

    world.model.script = script
    agent = Agent(world, shape, is_stream)
    got = [agent.turn(lambda one: f"found {one[2]}").raw for _ in range(7)]
    assert got == sent
    assert agent.runs == 12
    bodies = [asked.document["input" if shape == "responses" else "messages"] for asked in world.model.asked]
    assert bodies == [agent.messages[: len(body)] for body in bodies], "the history is what the client sends"
    assert decisions_of() == ["allow"] * 12
    # The usage of the last answer, which has no calls, comes a moment later.
    wait_for(lambda: Session.objects.get(external_id="s-1").token_count == 7 * 940)
    session = Session.objects.get(external_id="s-1")
    assert (session.integration, session.backend, session.model) == (
        "gateway",
        "anthropic" if shape == "anthropic" else "openai",
        "gpt-x",
    )


@every_form
def test_a_stuck_run_is_warned_then_blocked_then_stopped(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(asked, shape, "Let me search.", [call()])
    agent = Agent(world, shape, is_stream)
    last = agent.run()
    assert agent.runs == 3
    assert not last.calls
    assert last.text
    assert Incident.objects.get().kind == "repeat"
    made = decisions_of()
    assert made[:4] == ["allow", "allow", "warn", "block"]
    # The blocked answer was asked for again, twice.
    assert made[3:] == ["block"] * 3
    assert len(world.model.asked) == 6


@every_form
def test_a_blocked_call_is_asked_again_and_the_run_continues(world: World, shape, is_stream):
    message_templates.save_template(world.project.pk, "chance", "", "REFUSED $tool.", SYSTEM)

    def script(asked):
        text = asked.body.decode()
        if "given" in text:
            return answered(asked, shape, "I give up.")
        return answered(asked, shape, "", [call("second")] if "REFUSED search" in text else [call()])

    world.model.script = script
    agent = Agent(world, shape, is_stream)
    last = agent.run(result=lambda one: "given" if one[1] == "second" else "0 hits")
    assert last.text == "I give up." or last.text == "I give up. "
    assert [row.tool for row in calls_of()] == ["search"] * 4 + ["second"]
    assert agent.runs == 4
    assert "REFUSED" not in json.dumps(agent.messages), "the client does not know of the blocked call"
    # The warning, and the blocked call before the answer with the second tool.
    around_answers = GatewayRewrite.objects.exclude(body__contains='"anchor":"response:')
    assert around_answers.count() == 2
    asked_again, after = (
        one.document["input" if shape == "responses" else "messages"] for one in world.model.asked[-2:]
    )
    assert after[: len(asked_again)] == asked_again, "what follows has the same beginning"


@forms_in_turns
def test_a_model_that_is_to_finish_is_asked_again_without_tools(world: World, shape, is_stream):
    policy(world, mode=["finish"])

    def script(asked):
        choice = asked.document.get("tool_choice")
        is_free = choice not in ("none", {"type": "none"})
        return answered(asked, shape, "" if is_free else "This is all I have.", [call()] if is_free else [])

    world.model.script = script
    last = Agent(world, shape, is_stream, more={"tools": [{"name": "search"}]}).run()
    assert last.text.strip() == "This is all I have."
    assert decisions_of() == ["allow", "allow", "warn", "block"]
    assert [one.document.get("tool_choice") is not None for one in world.model.asked] == [False] * 4 + [True]


@pytest.mark.parametrize("shape", ["openai", "anthropic", "responses"])
def test_a_model_gets_the_known_answer_of_a_read_as_a_result(world: World, shape):
    policy(world, mode=["reuse"])

    def script(asked):
        has_it = "answer that the same call got" in asked.body.decode()
        return answered(asked, shape, "Three." if has_it else "", [] if has_it else [call("read_file")])

    world.model.script = script
    agent = Agent(world, shape)
    assert agent.run(result=lambda _: "three notes").text == "Three."
    assert agent.runs == 3
    again = world.model.asked[-1].body.decode()
    assert again.count("three notes") == 4
    assert "is_error" not in again


@forms_in_turns
def test_a_warning_precedes_the_result_in_every_later_request(world: World, shape, is_stream):
    def script(asked):
        return answered(
            asked,
            shape,
            "",
            [call()] if len(world.model.asked) <= 3 else [call("other", n=len(world.model.asked))],
        )

    world.model.script = script
    agent = Agent(world, shape, is_stream)
    for _ in range(6):
        agent.turn()
    warned = calls_of()[2].verdict.message
    bodies = [asked.body.decode() for asked in world.model.asked]
    needle = json.dumps(warned, ensure_ascii=False)[1:-1]
    assert [needle in body for body in bodies] == [False, False, False, True, True, True]
    assert warned not in json.dumps(agent.messages)


@forms_in_turns
def test_some_of_several_calls_are_forwarded_and_the_others_put_back(world: World, shape, is_stream):
    message_templates.save_template(world.project.pk, "chance", "", "REFUSED $tool.", SYSTEM)
    for tool in ("read", "list"):
        overrides.save_override(
            world.project.pk, Scope("tool", pattern=tool), {}, exempt=True, actor=SYSTEM, note="for the test"
        )

    def script(asked):
        turn = len(world.model.asked)
        return answered(asked, shape, "", [call("read"), call(), call("list")] if turn < 5 else [])

    world.model.script = script
    agent = Agent(world, shape, is_stream)
    given = [
        agent.turn(lambda one: "0 hits" if one[1] == "search" else f"text of {one[0]}") for _ in range(5)
    ]
    tools = [[one[1] for one in answer.calls] for answer in given]
    assert tools == [["read", "search", "list"]] * 3 + [["read", "list"], []]
    blocked = calls_of()[10]
    assert (blocked.tool, blocked.decision) == ("search", "block")
    last = json.dumps(world.model.asked[-1].document["input" if shape == "responses" else "messages"])
    first, second = (one[0] for one in given[3].calls)
    assert last.index(first) < last.index(blocked.call_id) < last.index(second)
    assert last.count("REFUSED search.") == 1
    assert last.index("REFUSED search.") < last.index(f"text of {first}") < last.index(f"text of {second}")
    assert blocked.call_id not in json.dumps(agent.messages)
    assert len(calls_of()) == 12


@forms_in_turns
def test_a_session_that_a_person_stopped_gets_a_text(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(asked, shape, "", [call(q=f"{len(world.model.asked)}")])
    agent = Agent(world, shape, is_stream)
    agent.turn()
    actions.stop(world.project.pk, "s-1", SYSTEM, "enough")
    last = agent.turn()
    assert "enough" in last.text
    assert not last.calls
    assert len(world.model.asked) == 1


@forms_in_turns
def test_a_held_call_waits_for_a_person(world: World, shape, is_stream):
    policy(world, mode="ask", max_repeats=3)
    world.model.script = lambda asked: answered(
        asked, shape, "", [call()] if len(world.model.asked) < 5 else []
    )

    def decide():
        while not (found := Approval.objects.filter(state="open", project=world.project).first()):
            time.sleep(0.05)
        decisions.decide(world.project.pk, found.public_id, "allow_once", SYSTEM)
        connection.close()

    thread = threading.Thread(target=decide, daemon=True)
    thread.start()
    agent = Agent(world, shape, is_stream)
    for _ in range(3):
        given = agent.turn()
    thread.join(10)
    assert given.calls
    assert agent.runs == 3


@forms_in_turns
def test_two_calls_of_one_answer_wait_for_one_decision(world: World, shape, is_stream):
    policy(world, budget_max_calls=3, budget_ladder="ask")
    both = [call("read", path="a"), call("read", path="b")]
    world.model.script = lambda asked: answered(asked, shape, "", both if len(world.model.asked) < 3 else [])

    def decide():
        while not (found := Approval.objects.filter(state="open", project=world.project).first()):
            time.sleep(0.05)
        decisions.decide(world.project.pk, found.public_id, "allow_once", SYSTEM)
        connection.close()

    thread = threading.Thread(target=decide, daemon=True)
    thread.start()
    agent = Agent(world, shape, is_stream)
    for _ in range(2):
        given = agent.turn()
    thread.join(10)
    assert len(given.calls) == 2
    assert agent.runs == 4
    assert Approval.objects.get().held_calls == 2


def test_a_blocked_call_gets_its_result_where_the_model_server_keeps_the_conversation(world: World):
    for tool in ("read", "list"):
        overrides.save_override(
            world.project.pk, Scope("tool", pattern=tool), {}, exempt=True, actor=SYSTEM, note="for the test"
        )
    world.model.script = lambda asked: answered(asked, "anthropic", "", [call("read"), call(), call("list")])
    agent = Agent(world, "anthropic", more={"thread": {"type": "create"}})
    for _ in range(5):
        agent.turn()
        agent.messages = agent.messages[-1:]
    blocked = next(one.call_id for one in calls_of() if one.decision == "block")
    [message] = world.model.asked[4].document["messages"]
    assert len(message["content"]) == 3
    assert blocked in {block["tool_use_id"] for block in message["content"]}


def test_sessions_without_a_header_are_told_apart_by_their_first_call(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    first, second = Agent(world, session=""), Agent(world, session="")
    for _ in range(2):
        first.turn()
        second.turn()
    names = list(Session.objects.values_list("external_id", "call_count"))
    assert len({name for name, _ in names}) == 2
    assert {count for _, count in names} == {2}
    assert all(name.startswith("chat-") for name, _ in names)


@pytest.mark.parametrize(
    ("headers", "more", "name"),
    [
        ({"X-Claude-Code-Session-Id": "cc-1"}, {}, "cc-1"),
        ({"User-Agent": "codex_cli_rs/0.169", "session-id": "cx-1"}, {}, "cx-1"),
        ({"x-session-id": "oc-1"}, {}, "oc-1"),
        ({"LoopGuard-Session": "own", "x-session-id": "oc-1"}, {}, "own"),
        ({}, {"metadata": {"user_id": '{"device_id": "d", "session_id": "js-1"}'}}, "js-1"),
        ({}, {"metadata": {"user_id": "user_1_account__session_old-1"}}, "old-1"),
        ({}, {"conversation": "conv_1"}, "conv_1"),
    ],
)
def test_a_session_has_the_name_that_the_agent_gives_it(world: World, headers, more, name):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    Agent(world, session="", headers=headers, more=more).ask()
    assert Session.objects.get().external_id == name


@pytest.mark.parametrize("is_stream", [False, True])
def test_reused_call_ids_are_calls_of_their_own(world: World, is_stream):
    world.model.script = lambda asked: answered(asked, "openai", "", [call(call_id="call_0")])
    agent = Agent(world, "openai", is_stream)
    agent.run()
    assert agent.runs == 3


def test_two_sessions_do_not_disturb_each_other(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    first, second = Agent(world, session="a"), Agent(world, session="b", is_stream=True)
    for _ in range(2):
        assert first.turn().calls
        assert second.turn().calls
    assert decisions_of("a") == decisions_of("b") == ["allow", "allow"]


def test_a_token_as_a_name_is_stored_of_neither_the_session_nor_its_calls(world: World):
    token = "ghp_" + "0a1B2c3D4e5F6g7H8j9K" * 2
    world.model.script = lambda asked: answered(asked, "openai", "", [call(token[:40])])
    names = {"LoopGuard-Agent": token, "LoopGuard-Parent-Session": token}
    agent = Agent(world, session=token, headers=names, more={"model": token})
    agent.run()
    assert agent.runs == 3, "the loop of a session so named is found"
    session = Session.objects.get()
    assert session.external_id.startswith("[redacted:github-token:")
    fields = (
        session.agent,
        session.model,
        session.parent_external_id,
        *calls_of(session.external_id)[0].tool.split(),
    )
    assert [name for name in fields if not name.startswith("[redacted:github-token:")] == []
    rows = [
        *Session.objects.values(),
        *Event.objects.values(),
        *Incident.objects.values(),
        *GatewayRewrite.objects.values(),
    ]
    assert token not in str(rows)
    # What is stored of the session is found by the next request: it stays stopped.
    actions.resume(world.project.pk, session.external_id, SYSTEM)
    actions.stop(world.project.pk, session.external_id, SYSTEM, "enough")
    agent.ask()
    assert agent.runs == 3
