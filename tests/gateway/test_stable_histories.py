"""What the gateway adds to a history is the same in every later request, so that prompt caches keep working."""

import itertools
import json

import pytest

from detection.engine.scopes import Scope
from detection.models import GatewayRewrite
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from tests.support.model_answers import answered, call

from .agents import Agent
from .conftest import World
from .forms import forms_in_turns


@pytest.mark.parametrize("turns", [20, pytest.param(50, marks=pytest.mark.long)])
@forms_in_turns
def test_each_request_begins_with_the_one_before(world: World, shape, is_stream, turns):
    """With warnings, with answers that were asked for again, and with calls that were blocked beside others."""
    overrides.save_override(
        world.project.pk, Scope("tool", pattern="read"), {}, exempt=True, actor=SYSTEM, note="for the test"
    )
    firsts: list[int] = []

    def script(asked):
        turn = len(firsts)
        alone = turn % 12 == 5 and len(world.model.asked) == firsts[-1] + 1
        calls = [call()] if alone or turn < 4 else [call("read"), call()]
        return answered(asked, shape, "Hm.", calls)

    world.model.script = script
    agent = Agent(world, shape, is_stream)
    for turn in range(turns):
        firsts.append(len(world.model.asked))
        if not agent.turn(lambda one: "0 hits" if one[1] == "search" else f"text of {one[0]}").calls:
            agent.say(f"go on {turn}")
    assert GatewayRewrite.objects.exists()
    key = "input" if shape == "responses" else "messages"
    bodies = [json.dumps(world.model.asked[first].document[key])[:-1] for first in firsts]
    assert all(after.startswith(before) for before, after in itertools.pairwise(bodies))
