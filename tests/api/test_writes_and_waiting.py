"""Writes count by what they do, and waiting is waiting: each kind on both sides, through the guard and through hooks."""

from __future__ import annotations

import itertools
import json

import pytest

from detection.models import Session
from detection.services.sessions.evaluation import evaluate
from detection.services.what_if import worker
from tests.api.test_hooks import HookedAgent, is_denied

ORDER = ("place_order", {"sku": "B-1", "qty": 1})
MAIL = ("send_email", {"to": "ann@example.org", "text": "Done."})
POST = ("bash", {"command": "curl -X POST https://shop.example/orders -d @order.json"})
WRITES = {
    "orders": [(*ORDER, json.dumps({"order_id": f"ORD-{7000 + n}", "status": "placed"})) for n in range(6)],
    "mails": [(*MAIL, f"Sent as <{n * 7919:x}@mail.example> at 12:0{n}:07.") for n in range(6)],
    "posts of a shell": [(*POST, f'{{"id": "{n * 104729:x}", "created": true}}') for n in range(6)],
    "an action in the arguments": [
        ("shop", {"action": "create_order", "sku": "B-1"}, f"Order #{7000 + n} was created.")
        for n in range(6)
    ],
}
MOVES = {
    "pages": [("next_page", {}, f"Page {n} of 9: row {n * n}") for n in range(8)],
    "steps of a debugger": [("debugger_step", {}, f"a.py:{n + 10}: total += {n}") for n in range(8)],
    "a counter": [("increment_counter", {"name": "runs"}, json.dumps({"runs": n})) for n in range(8)],
    "a queue": [("dequeue", {"queue": "jobs"}, f"job {n * 31}: parcel {n * n}") for n in range(8)],
    "a click on Next": [("browser_click", {"text": "Next"}, f"Card {n}: word {n * n + 3}") for n in range(8)],
    "other orders": [("place_order", {"sku": f"B-{n}"}, f"Order #{7000 + n} was placed.") for n in range(8)],
    "reading what changes": [("read_file", {"path": "log"}, f"line {n} of {n * n}") for n in range(8)],
}


@pytest.mark.parametrize("name", WRITES)
def test_the_fourth_identical_write_is_blocked_and_told_what_happened(api, name):
    found = api.run(WRITES[name])
    assert next(number for number, (decision, _) in found.items() if decision == "block") == 4
    assert "so far, " in found[4][1]


def test_the_message_counts_what_was_made_and_names_the_last(api):
    assert "3 orders were placed; the last is ORD-7002" in api.run(WRITES["orders"])[4][1]


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_on_is_no_repeat(api, name):
    assert "block" not in {decision for decision, _ in api.run(MOVES[name]).values()}


def through_hooks(api, tool, arguments, contents):
    """Call a tool through the hooks of Claude Code; the calls that were denied, from 1."""
    agent, denied = HookedAgent(api, "claude-code"), []
    for number, content in enumerate(contents, 1):
        call = {"tool_name": tool, "tool_input": arguments}
        if is_denied("claude-code", agent.before(**call)):
            denied.append(number)
        else:
            agent.after(content, **call)
    return denied


SAME = itertools.repeat
WAITS = {
    "a job that is running": ("get_job", {"id": "j-7"}, SAME('{"id": "j-7", "status": "running"}', 8)),
    "a build that is queued": ("ci_build", {"id": 7}, SAME("queued", 8)),
    "a report that is not ready": ("fetch_report", {"id": 7}, SAME("The report is not ready yet.", 8)),
    "a name that says wait": ("wait_for_deploy", {"id": 7}, SAME("web: v41", 8)),
    "a name that says status": ("get_deploy_status", {"id": 7}, SAME("web: v41", 8)),
    "empty input to a running program": ("write_stdin", {"session_id": 7, "chars": ""}, SAME("compiling", 8)),
}
LOOPS = {
    "a job that is done": ("get_job", {"id": "j-7"}, SAME('{"id": "j-7", "status": "done"}', 8)),
    "a session that is gone": (
        "write_stdin",
        {"session_id": 7, "chars": ""},
        SAME("No session found for 7", 8),
    ),
    "a job that does not exist": ("get_job_status", {"id": 7}, SAME('{"error": "no such job"}', 8)),
    "a file that says the same": ("Bash", {"command": "cat notes.txt"}, SAME("running shoes", 8)),
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_is_not_blocked_at_once(api, name):
    assert through_hooks(api, *WAITS[name]) == []


@pytest.mark.parametrize("name", LOOPS)
def test_what_does_not_wait_is_blocked_at_the_fourth(api, name):
    assert through_hooks(api, *LOOPS[name])[0] == 4


@pytest.mark.parametrize(("between", "most"), [(True, 1), (False, 20)])
def test_what_a_person_asks_for_again_is_mentioned_once(api, between, most):
    read = ("read_file", {"path": "todo.md"}, "- buy milk")
    found = api.run(
        [step for n in range(10) for step in ((f"What is left? {n}", read) if between else (read,))]
    )
    assert len(found) <= most
    assert ("block" in {decision for decision, _ in found.values()}) is not between


def of_one_answer(api, *calls, session="s-1", **more):
    asked = [
        {"call_id": f"a-{n}", "tool": tool, "arguments": arguments}
        for n, (tool, arguments) in enumerate(calls)
    ]
    return api.post("/guard", {"session": session, "calls": asked, **more}).json()["verdicts"]


def test_the_same_order_of_one_answer_is_placed_once(api):
    verdicts = of_one_answer(api, ORDER, ORDER, ("get_stock", {"sku": "B-1"}), ORDER)
    assert [one["decision"] for one in verdicts] == ["allow", "block", "allow", "block"]
    assert "The result of that call is the result of this one" in verdicts[1]["message"]
    assert verdicts[1]["finding"] is None
    assert not api.get("/incidents").json()["items"]
    # A lost answer is asked for once more, and is the same.
    again = of_one_answer(api, ORDER, ORDER, ("get_stock", {"sku": "B-1"}), ORDER)
    assert [(one["decision"], one["message"]) for one in again] == [
        (one["decision"], one["message"]) for one in verdicts
    ]
    shown = {one["call_id"]: one for one in api.get("/sessions/s-1/calls").json()["items"]}
    assert [shown[f"a-{n}"]["decision"] for n in range(4)] == ["allow", "block", "allow", "block"]
    # What was refused is reported as such, and the next answer may order again.
    results = [
        {"call_id": "a-0", "content": '{"order_id": "ORD-1"}'},
        {"call_id": "a-1", "content": verdicts[1]["message"], "is_error": True},
    ]
    call = {"call_id": "b-0", "tool": ORDER[0], "arguments": ORDER[1]}
    answer = api.post("/guard", {"session": "s-1", "results": results, "calls": [call]}).json()
    assert answer["decision"] == "allow"


def test_looks_and_different_orders_of_one_answer_all_run(api):
    looks = of_one_answer(api, *[("get_order", {"id": 7})] * 6)
    orders = of_one_answer(api, *[("place_order", {"sku": f"B-{n}"}) for n in range(6)], session="s-2")
    assert {one["decision"] for one in [*looks, *orders]} == {"allow"}


@pytest.mark.parametrize("values", [{"writes_once": False}, {"preset": "balanced"}, {"preset": "lenient"}])
def test_where_it_is_off_the_orders_of_one_answer_run(api, values):
    api.call()
    api.patch("/sessions/s-1/policy", values)
    assert [one["decision"] for one in of_one_answer(api, ORDER, ORDER)] == ["allow", "allow"]


def test_orders_whose_hooks_come_at_once_are_of_one_answer(api):
    agent = HookedAgent(api, "claude-code")
    look = {"tool_name": "get_stock", "tool_input": {"sku": "B-1"}}
    agent.before(**look)
    agent.after("5", **look)
    order = {"tool_name": ORDER[0], "tool_input": ORDER[1]}
    assert [is_denied("claude-code", agent.before(**order)) for _ in range(3)] == [False, True, True]


def test_orders_that_were_reported_after_they_ran_are_marked_and_keep_their_results(api):
    events = [
        {
            "type": "call",
            "session": "s-1",
            "call_id": f"a-{n}",
            "tool": ORDER[0],
            "arguments": ORDER[1],
            "round": "r",
        }
        for n in range(2)
    ]
    events += [
        {"type": "result", "session": "s-1", "call_id": f"a-{n}", "content": f"ORD-{n}"} for n in range(2)
    ]
    assert api.post("/events", {"events": events}).status_code == 202
    evaluate(Session.objects.get(external_id="s-1").key)
    shown = {one["call_id"]: one for one in api.get("/sessions/s-1/calls").json()["items"]}
    assert [shown[f"a-{n}"]["decision"] for n in range(2)] == ["allow", "block"]
    assert [shown[f"a-{n}"]["result"]["content"] for n in range(2)] == ["ORD-0", "ORD-1"]


def test_a_what_if_tries_the_setting(api):
    of_one_answer(api, ORDER, ORDER)
    made = api.post("/what-if", {"scope": "project", "values": {"writes_once": False}})
    assert made.status_code == 202
    worker.run_waiting(lambda: False)
    shown = api.get(f"/what-if/{made.json()['id']}").json()
    assert shown["state"] == "finished"
    assert shown["result"]["decisions"] == {"before": {"allow": 1, "block": 1}, "after": {"allow": 1}}
