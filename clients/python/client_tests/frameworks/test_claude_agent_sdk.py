"""The snippet for the Claude Agent SDK: its hooks, called as the SDK calls them. No model runs here."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "claude_agent_sdk", reason="claude-agent-sdk is not installed: python3 manage.py test clients --install"
)

from claude_agent_sdk import ClaudeAgentOptions

from .snippets import snippet


async def test_three_identical_calls_run_and_the_eighth_ends_the_run(guard, server, name):
    options = ClaudeAgentOptions(hooks=snippet("claude_agent_sdk")["loopguard_hooks"](guard))
    before, after = (options.hooks[event][0].hooks[0] for event in ("PreToolUse", "PostToolUse"))
    body = {"session_id": name, "tool_name": "Bash", "tool_input": {"command": "make test"}}
    answers = []
    for number in range(8):
        answers.append(answer := await before(body, f"toolu_{number}", {"signal": None}))
        if answer.get("hookSpecificOutput", {}).get("permissionDecision") != "deny":
            await after(
                {**body, "tool_response": {"stdout": "2 failed", "stderr": ""}},
                f"toolu_{number}",
                {"signal": None},
            )
    outputs = [answer.get("hookSpecificOutput", {}) for answer in answers]
    assert answers[:2] == [{}, {}]
    assert outputs[2]["additionalContext"]
    assert [output["permissionDecision"] for output in outputs[3:]] == ["deny"] * 5
    assert ["continue_" in answer for answer in answers] == [False] * 7 + [True]
    assert guard.flush(20)
    assert [bool(call["result"]) for call in server.calls(name)[:3]] == [True] * 3
