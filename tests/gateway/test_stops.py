"""How an answer ends that stops a run: a text, and under the preset `proxy` an error where the protocol has one."""

import re

import pytest
from django.conf import settings

from detection.engine.scopes import PROJECT
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from detection.services.sessions import actions
from tests.support.model_answers import answered, call

from .agents import Agent
from .conftest import World
from .forms import forms_in_turns

ENDS = {
    "standard": {"openai": "stop", "anthropic": "end_turn", "responses": "completed"},
    "proxy": {"openai": "error", "anthropic": "end_turn", "responses": "completed"},
}


def stop_at_once(world, preset):
    values = {"preset": preset, "mode": "break", "max_repeats": 3}
    overrides.save_override(world.project.pk, PROJECT, values, SYSTEM, "for the test")


@forms_in_turns
@pytest.mark.parametrize("preset", ENDS)
def test_a_detected_loop_ends_the_answer(world: World, shape, is_stream, preset):
    stop_at_once(world, preset)
    world.model.script = lambda asked: answered(asked, shape, "Let me search.", [call()])
    agent = Agent(world, shape, is_stream)
    last = agent.run()
    assert agent.runs == 2
    assert "Tool call loop detected" in last.text
    assert last.finish == ENDS[preset][shape]


@forms_in_turns
@pytest.mark.parametrize("preset", ENDS)
def test_a_person_ends_the_next_answer(world: World, shape, is_stream, preset):
    stop_at_once(world, preset)
    world.model.script = lambda asked: answered(asked, shape, "", [call(q=f"{len(world.model.asked)}")])
    agent = Agent(world, shape, is_stream)
    agent.turn()
    actions.stop(world.project.pk, "s-1", SYSTEM, "enough")
    last = agent.run()
    assert "enough" in last.text
    assert last.finish == ENDS[preset][shape]


@forms_in_turns
def test_a_run_continues_after_it_was_resumed(world: World, shape, is_stream):
    world.model.script = lambda asked: answered(asked, shape, "", [call(q=f"{len(world.model.asked)}")])
    agent = Agent(world, shape, is_stream)
    agent.turn()
    actions.stop(world.project.pk, "s-1", SYSTEM)
    agent.run()
    actions.resume(world.project.pk, "s-1", SYSTEM)
    agent.say("go on")
    assert agent.turn().calls


@forms_in_turns
def test_an_answer_that_a_limit_ends_names_it_and_no_loop(world: World, shape, is_stream):
    values = {
        "session_budget_enabled": True, "session_budget_max_calls": 3, "session_budget_ladder": ["stop"],
    }  # fmt: skip
    overrides.save_override(world.project.pk, PROJECT, values, SYSTEM, "for the test")
    world.model.script = lambda asked: answered(asked, shape, "", [call(q=f"{len(world.model.asked)}")])
    last = Agent(world, shape, is_stream).run()
    assert "This session has reached its limit of 2 calls. No further call runs." in last.text
    assert not re.search(r"\bloops?\b", last.text, re.IGNORECASE)
    assert last.text.startswith("LoopGuard ended this run. ")
    assert last.text.endswith(f"See {settings.PUBLIC_URL}/p/{world.project.slug}/sessions/s-1")
