"""Detectors that find one loop: the strictest reaction, one incident for the loop, and no silence while it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from detection.models import Incident

ERROR = "Error: old text not found"


def play(api, calls, *, is_error=True):
    """Make calls, each with its result; the decisions and notices by call, from 1."""
    said = {}
    results: list[Any] = []
    for number, (tool, arguments, content) in enumerate(calls, 1):
        call = {"call_id": f"c-{number}", "tool": tool, "arguments": arguments}
        answer = api.post("/guard", {"session": "s-1", "results": results, "calls": [call]})
        assert answer.status_code == 200, answer.text
        answer = answer.json()
        said[number] = (answer["decision"], bool(answer["notices"]))
        blocked = answer["decision"] in ("block", "stop")
        results = [] if blocked else [{"call_id": call["call_id"], "content": content, "is_error": is_error}]
    return said


def edits(count, content=ERROR):
    return [
        ("edit_file", {"path": "a.py", "old": "def total():" + " " * number, "new": "def total(x):"}, content)
        for number in range(count)
    ]


def fetches(count):
    words = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf")
    return [
        ("fetch_page", {"url": f"https://example.com/{words[n % 7]}-{n * n}"}, "HTTP 404: no such page")
        for n in range(count)
    ]


@pytest.mark.parametrize("calls", [edits(20), fetches(20)], ids=["edits", "fetches"])
def test_the_same_error_is_warned_about_then_blocked_then_stopped(api, calls):
    said = play(api, calls)
    assert said[5] == ("allow", True)
    decisions = [decision for decision, _ in said.values()]
    assert decisions.index("block") == 9
    assert set(decisions[10:]) == {"stop"}
    assert Incident.objects.count() == 1
    assert Incident.objects.get().kind == "outcome"


def test_edits_that_change_the_file_are_work(api):
    calls = [
        ("edit_file", arguments, f"Replaced 1 line at {n}.") for n, (_, arguments, _) in enumerate(edits(20))
    ]
    said = play(api, calls, is_error=False)
    assert {decision for decision, _ in said.values()} <= {"allow", "warn"}


def test_tools_that_are_all_not_connected_are_mentioned_again_and_blocked_in_the_end(api):
    said = play(api, [(f"service_{n}_read", {"of": n}, "not connected") for n in range(26)])
    reactions = [number for number, (decision, notice) in said.items() if decision != "allow" or notice]
    assert len([one for one in reactions if one <= 20]) >= 3
    blocked = [number for number, (decision, _) in said.items() if decision == "block"]
    assert blocked
    assert min(blocked) > 20


def test_new_pages_are_never_a_loop(api):
    calls = [(f"service_{n}_read", {"of": n}, f"row {n * 31} of service {n * n}") for n in range(26)]
    said = play(api, calls, is_error=False)
    assert set(said.values()) == {("allow", False)}
    assert not Incident.objects.exists()
