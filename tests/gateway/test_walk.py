"""The walk of a request through the gateway, as docs/architecture.md has it."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from detection.gateway.conversation import Conversation, Turn
from detection.gateway.verdicts import JudgedAnswer
from tests.support.carrying import OF_GATEWAY, carrying
from tests.support.model_answers import answered, call
from tests.test_architecture import assert_within

from .agents import Agent
from .conftest import World, serving


def test_no_more_functions_carry_a_request_through_the_gateway(world: World):
    def script(asked):
        return answered(asked, "openai", "", [call(q=f"page {len(world.model.asked)}")])

    world.model.script = script
    with carrying(OF_GATEWAY) as carriers, serving() as url:
        agent = Agent(replace(world, url=url), "openai", True)
        for _ in range(2):
            agent.turn()
    assert agent.runs == 2
    assert_within("A request through the gateway", carriers)
    for name in ("exchange.py Exchange._ask", "verdicts.py AnswerVerdicts.judge"):
        assert tuple(f"detection/gateway/{name}".split()) in carriers.functions


@pytest.mark.parametrize("value", [Conversation, Turn, JudgedAnswer])
def test_no_step_can_change_what_another_one_has(value):
    one = object.__new__(value)
    for field in fields(value):
        with pytest.raises(FrozenInstanceError):
            setattr(one, field.name, None)
