"""Tools that keep an agent's own list of tasks: a list that moves on is work, the same one again and again is a loop."""

from collections.abc import Callable

import pytest

from detection.models import Event, Incident
from tests.api.test_directories import Agent


def tasks(done=0, total=12, tool="TodoWrite", field="todos", case=str):
    """A call that writes a list of which so many tasks are done."""
    items = [
        {"content": case(f"Task number {n}"), "status": "completed" if n < done else "pending"}
        for n in range(total)
    ]
    return {"tool": tool, "arguments": {field: items}}


LISTS = [
    ("TodoWrite", "todos"),
    ("todo_write", "todos"),
    ("update_plan", "plan"),
    ("write_todos", "todos"),
    ("mcp__goose__todo_write", "todos"),
    ("manage_todo_list", "todoList"),
    ("update_todo_list", "todos"),
    ("task_tracker", "task_list"),
]


@pytest.mark.parametrize(("tool", "field"), LISTS)
@pytest.mark.parametrize("answer", ["Plan updated", "Todos have been modified successfully. Please proceed."])
def test_a_list_that_moves_on_is_work_whatever_its_receipts(api, tool, field, answer):
    agent = Agent(api)
    assert {agent.step(tasks(done, tool=tool, field=field), answer) for done in range(13)} == {"allow"}
    assert not Incident.objects.exists()


@pytest.mark.parametrize(("tool", "field"), LISTS)
def test_the_same_list_again_is_a_loop_whatever_its_spelling_and_its_receipts(api, tool, field):
    agent = Agent(api)
    cases: list[Callable[[str], str]] = [str, str.upper, str.title, lambda text: text.replace(" ", "  ")]
    steps = [
        (tasks(tool=tool, field=field, case=case), f'Updated 12 items. Removed "{case("Task number 1")}".')
        for case in cases
    ]
    assert [agent.step(*step) for step in steps][-1] == "block"
    assert len(set(Event.objects.filter(type="call").values_list("call_key", flat=True))) == 1


def test_two_lists_in_turns_are_a_loop(api):
    agent = Agent(api)
    decisions = [agent.step(tasks(number % 2), "Todos have been modified.") for number in range(14)]
    assert "warn" in decisions
    assert "block" in decisions


def test_a_new_list_does_not_excuse_calls_that_repeat(api):
    agent = Agent(api)
    read = {"tool": "read_file", "arguments": {"path": "a.py"}}
    decisions = []
    for done in range(8):
        agent.step(tasks(done), "Todos have been modified.")
        decisions.append(agent.step(read, "the text of the file"))
    assert "warn" in decisions


def test_the_same_list_with_work_in_between_is_no_loop(api):
    agent = Agent(api)
    for number in range(8):
        assert agent.step(tasks(), "Todos have been modified.") == "allow"
        read = {"tool": "read_file", "arguments": {"path": f"part-{number * 31}.py"}}
        assert agent.step(read, f"def function_{number}(): return {number * 7}") == "allow"
    assert not Incident.objects.exists()


def test_an_error_of_a_list_is_an_error(api):
    agent = Agent(api)
    decisions = [agent.step(tasks(done), "InputValidationError: todos must be an array") for done in range(6)]
    assert set(decisions) != {"allow"}


def test_tools_of_a_tracker_that_people_use_write(api):
    agent = Agent(api)
    call = {"tool": "update_task", "arguments": {"id": 4, "title": "Call Ann"}}
    other = {"tool": "update_task", "arguments": {"id": 4, "title": "CALL ANN"}}
    agent.step(call, "Updated.")
    agent.step(other, "Updated.")
    assert len(set(Event.objects.filter(type="call").values_list("call_key", flat=True))) == 2


@pytest.mark.parametrize("preset", ["proxy", "balanced", "advisory"])
def test_presets_that_take_calls_as_they_are_written_take_lists_so(api, preset):
    api.put("/overrides", {"values": {"preset": preset}})
    agent = Agent(api)
    agent.step(tasks(), "ok")
    agent.step(tasks(case=str.upper), "ok")
    assert len(set(Event.objects.filter(type="call").values_list("call_key", flat=True))) == 2
