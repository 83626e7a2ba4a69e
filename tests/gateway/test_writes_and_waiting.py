"""Writes and waiting through the gateway: an order is not placed a fourth time, and a job may be looked at."""

import json

import pytest

from detection.models import Event, Incident
from tests.support.model_answers import answered, call

from .agents import Agent
from .conftest import World


def decisions():
    return list(Event.objects.filter(type="call").order_by("seq").values_list("decision", flat=True))


def test_an_order_is_placed_three_times(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call("place_order", sku="B-1", qty=1)])
    agent = Agent(world)
    agent.run(result=lambda one: json.dumps({"order_id": f"ORD-{7000 + agent.runs}", "status": "placed"}))
    assert agent.runs == 3
    assert decisions()[:4] == ["allow", "allow", "warn", "block"]
    assert (
        "3 orders were placed; the last is ORD-7003"
        in Event.objects.get(seq__gt=0, call_number=4).verdict.message
    )


def test_a_job_that_runs_is_looked_at_and_one_that_is_done_is_not(world: World):
    status = "running"
    world.model.script = lambda asked: answered(asked, "anthropic", "", [call("get_job", id="j-7")])
    agent = Agent(world, "anthropic")
    for _ in range(6):
        agent.turn(result=lambda one: json.dumps({"id": "j-7", "status": status}))
    assert agent.runs == 6
    assert not Incident.objects.filter(calls_blocked__gt=0).exists()
    done = Agent(world, "anthropic", session="s-2")
    done.run(result=lambda one: json.dumps({"id": "j-7", "status": "done"}))
    assert done.runs == 3


def twice(tool, **arguments):
    return [call(tool, **arguments), call(tool, **arguments), call("get_stock", sku="B-1")]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("shape", ["openai", "anthropic", "responses", "gemini"])
def test_the_same_order_of_one_answer_is_placed_once_and_its_result_is_that_of_both(
    world: World, shape, is_stream
):
    def script(asked):
        first = len(world.model.asked) == 1
        return answered(
            asked, shape, "" if first else "done", twice("place_order", sku="B-1") if first else ()
        )

    world.model.script = script
    agent = Agent(world, shape, is_stream)
    agent.run(result=lambda one: f"ORD-{7000 + agent.runs}")
    assert agent.runs == 2
    assert decisions() == ["allow", "block", "allow"]
    shown = json.dumps(world.model.asked[1].document)
    # Gemini's calls have no ids here, by which a result could be that of another call.
    assert shown.count("ORD-7001") == (1 if shape == "gemini" else 2)
    assert ("the same answer calls" in shown) == (shape == "gemini")
    # Every later request has the same history.
    agent.say("and now?")
    agent.ask()
    assert json.dumps(world.model.asked[2].document).count("ORD-7001") == shown.count("ORD-7001")


def test_the_same_look_of_one_answer_runs_each_time(world: World):
    def script(asked):
        return answered(asked, "openai", "", twice("get_order", id=7) if len(world.model.asked) == 1 else ())

    world.model.script = script
    agent = Agent(world)
    agent.run()
    assert agent.runs == 3
