"""The hooks of a coding agent and the client inside it report the same calls of one session: each counts once."""

from __future__ import annotations

import pytest

from loopguard_client import Guard

CALLS = 10
ARGUMENTS = {"command": "make test"}


class Agent:
    """Claude Code with hooks, whose program also guards its tools with the client.

    Attributes
    ----------
    runs
        How often the tool ran: only when both let it.
    """

    def __init__(self, server, guard, name):
        self.server, self.name, self.runs = server, name, 0
        self.session = guard.session(name, agent="claude-code")

    def hook(self, event, number, **more):
        body = {
            "session_id": self.name, "hook_event_name": event, "tool_name": "Bash", "tool_input": ARGUMENTS,
            "tool_use_id": f"toolu_{number}", **more,
        }  # fmt: skip
        return self.server.post("/hooks/claude-code", body)

    def is_denied(self, number):
        answer = self.hook("PreToolUse", number)
        return answer.get("hookSpecificOutput", {}).get("permissionDecision") == "deny"

    def call_hook_first(self, number):
        is_denied = self.is_denied(number)
        verdict = self.session.check("Bash", ARGUMENTS, call_id=f"toolu_{number}")
        self.finish(number, verdict, is_denied=is_denied)

    def call_client_first(self, number):
        verdict = self.session.check("Bash", ARGUMENTS, call_id=f"toolu_{number}")
        self.finish(number, verdict, is_denied=self.is_denied(number))

    def finish(self, number, verdict, *, is_denied):
        assert is_denied != verdict.may_run, "both say the same of a call"
        if verdict.may_run:
            self.runs += 1
            self.session.result(verdict, "2 failed")
            self.hook("PostToolUse", number, tool_response="2 failed")


@pytest.fixture
def guard(server):
    guard = Guard(server.url, server.key, budget_seconds=20)
    yield guard
    assert guard.close(20)


@pytest.mark.parametrize("order", ["call_hook_first", "call_client_first"])
def test_three_of_ten_calls_run_and_each_of_them_counts_once(server, guard, name, order):
    agent = Agent(server, guard, name)
    for number in range(CALLS):
        getattr(agent, order)(number)
    assert agent.runs == 3
    assert guard.flush(20)
    assert server.session(name)["calls"] == CALLS
    calls = server.calls(name)
    assert [call["call_id"] for call in calls] == [f"toolu_{number}" for number in range(CALLS)]
    assert [call["decision"] for call in calls[:4]] == ["allow", "allow", "warn", "block"]
    assert all(call["result"] for call in calls[:3])


def test_without_the_agents_id_of_a_call_both_reports_count(server, guard, name):
    agent = Agent(server, guard, name)
    agent.hook("PreToolUse", 1)
    agent.session.check("Bash", ARGUMENTS)
    assert server.session(name)["calls"] == 2
