"""Writes and waiting through the gateway: an order is not placed a fourth time, and a job may be looked at."""

import json

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
