"""Transcripts of our own writing, in the forms of the programs that record them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from zlib import crc32

USAGE = {"input_tokens": 100, "cache_read_input_tokens": 900, "output_tokens": 50}


def codex(calls: list[str], session: str = "019a-1") -> Iterator[dict[str, object]]:
    """Yield a session of Codex in which each of `calls` is one model response with its result."""

    def entry(kind: str, seconds: int, **payload: Any) -> dict[str, object]:
        at = f"2026-03-01T12:{seconds // 60:02}:{seconds % 60:02}.000Z"
        return {"timestamp": at, "type": kind, "payload": payload}

    def said(text: str, seconds: int) -> dict[str, object]:
        content = [{"type": "input_text", "text": text}]
        return entry("response_item", seconds, type="message", role="user", content=content)

    yield entry("session_meta", 0, id=session, cwd="/src", cli_version="0.171.0", model_provider="openai")
    yield said("<environment_context>\n<cwd>/src</cwd>\n</environment_context>", 0)
    yield said("Fix the tests", 0)
    yield entry("event_msg", 0, type="user_message", message="Fix the tests")
    yield entry("turn_context", 0, cwd="/src", model="gpt-x")
    for number, command in enumerate(calls, 1):
        at = number * 5
        call = {"name": "shell", "arguments": json.dumps({"command": ["bash", "-lc", command]})}
        yield entry("response_item", at, type="function_call", call_id=f"call_{number}", **call)
        last = {"input_tokens": 1000, "cached_input_tokens": 800, "output_tokens": 50, "total_tokens": 1050}
        total = {name: value * number for name, value in last.items()}
        for _ in range(2):
            info = {"total_token_usage": total, "last_token_usage": last}
            yield entry("event_msg", at, type="token_count", info=info)
        output = {"type": "function_call_output", "call_id": f"call_{number}", "output": said_by(command)}
        yield entry("response_item", at + 1, **output)


def said_by(command: str) -> str:
    return "2 failed" if command.startswith("make") else f"{crc32(command.encode()):,} lines of text"


def gemini_cli(calls: list[str], session: str = "1be4-1") -> Iterator[dict[str, Any]]:
    """Yield a session of Gemini CLI in which each of `calls` is one model response with its result."""
    yield {
        "sessionId": session,
        "projectHash": "211c",
        "startTime": "2026-03-01T12:00:00.000Z",
        "kind": "main",
    }
    start = [{"text": "<session_context>\nThis is the Gemini CLI.\n</session_context>"}]
    first = {"id": "u0", "timestamp": "2026-03-01T12:00:00.000Z", "type": "user", "content": start}
    yield {"$set": {"messages": [first], "lastUpdated": "2026-03-01T12:00:00.000Z"}}
    yield first | {"id": "u1", "content": [{"text": "Fix the tests"}]}
    for number, command in enumerate(calls, 1):
        at = f"2026-03-01T12:{number * 5 // 60:02}:{number * 5 % 60:02}.000Z"
        tokens = {"input": 1000, "output": 30, "cached": 800, "thoughts": 20, "tool": 0, "total": 1050}
        response = {
            "id": f"r{number}", "timestamp": at, "type": "gemini", "content": "", "tokens": tokens, "model": "gemini-x"
        }  # fmt: skip
        yield response
        yield {"$set": {"lastUpdated": at}}
        name = f"run_shell_command_{number}"
        output = {"output": f"Output: {said_by(command)}\nProcess Group PGID: {7000 + number}"}
        answer = [{"functionResponse": {"id": name, "name": "run_shell_command", "response": output}}]
        call = {"id": name, "name": "run_shell_command", "args": {"command": command}, "result": answer}
        yield response | {
            "toolCalls": [call | {"status": "success", "timestamp": at, "resultDisplay": said_by(command)}]
        }
        yield {"id": f"a{number}", "timestamp": at, "type": "user", "content": answer}


def copilot(calls: list[str], session: str = "acd4-1") -> Iterator[dict[str, Any]]:
    """Yield a session of Copilot CLI in which each of `calls` is one model response with its result."""

    def entry(kind: str, number: int, **data: Any) -> dict[str, Any]:
        at = f"2026-03-01T12:{number * 5 // 60:02}:{number * 5 % 60:02}.000Z"
        return {"type": kind, "data": data, "id": f"{kind}-{number}", "timestamp": at, "parentId": None}

    yield entry("session.start", 0, sessionId=session, copilotVersion="1.0.102", context={"cwd": "/src"})
    yield entry(
        "user.message", 0, content="Fix the tests", transformedContent="<current_datetime/>\n\nFix the tests"
    )
    yield entry("system.message", 0, role="system", content="You are an assistant.")
    for number, command in enumerate(calls, 1):
        tokens = {"inputTokens": 1000, "outputTokens": 50, "cacheReadTokens": 800}
        yield entry("assistant.turn_start", number, turnId=str(number))
        yield entry("session.usage_record", number, usage={"model": "gpt-x", **tokens})
        about = {"toolCallId": f"call_{number}", "arguments": {"command": command}}
        asked = [{**about, "name": "bash", "type": "function"}]
        yield entry(
            "assistant.message", number, messageId=f"m{number}", model="gpt-x", content="", toolRequests=asked
        )
        yield entry("tool.execution_start", number, **about, toolName="bash")
        end = f"<shellId: {number} completed with exit code 1>"
        done = {"success": True, "result": {"content": f"{said_by(command)}\n{end}"}}
        if command.startswith("deny"):
            done = {"success": False, "error": {"message": "Denied by preToolUse hook", "code": "denied"}}
        yield entry("tool.execution_complete", number, toolCallId=f"call_{number}", **done)


def claude_code(
    calls: list[str], session: str = "5d1c", step_seconds: int = 5, **more: Any
) -> Iterator[dict[str, Any]]:
    """Yield a session in which each of `calls` is one model response with its result."""
    yield {"type": "summary", "summary": "Fix the tests"}
    yield {"type": "user", "sessionId": session, "message": {"role": "user", "content": "Fix the tests"},
           "timestamp": "2026-03-01T12:00:00.000Z", **more}  # fmt: skip
    for number, command in enumerate(calls, 1):
        seconds = number * step_seconds
        at = f"2026-03-01T{12 + seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.000Z"
        common = {"sessionId": session, "timestamp": at, **more}
        message = {"id": f"msg_{number}", "role": "assistant", "model": "claude-x", "usage": USAGE}
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {"command": command}}
        yield {
            "type": "assistant",
            **common,
            "message": message | {"content": [{"type": "text", "text": "I see"}]},
        }
        yield {"type": "assistant", **common, "message": message | {"content": [use]}}
        is_error = command.startswith("make")
        said = "2 failed" if is_error else f"{crc32(command.encode()):,} lines of text"
        use_id = f"toolu_{number}"
        result = {"type": "tool_result", "tool_use_id": use_id, "content": said, "is_error": is_error}
        yield {"type": "user", **common, "message": {"role": "user", "content": [result]}}


def openai(calls: list[str], prompt: str = "Find it") -> list[dict[str, Any]]:
    """Return the messages of a run in which each of `calls` is a search without a result."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for number, query in enumerate(calls):
        function = {"name": "search", "arguments": json.dumps({"q": query})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": "0 results"})
    return messages


def lines(values: Any) -> bytes:
    """Return values as JSON lines."""
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)
