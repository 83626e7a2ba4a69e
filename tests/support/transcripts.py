"""Transcripts of our own writing, in the forms of the programs that record them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
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


def _at(number: int, more: int = 0) -> str:
    seconds = number * 5 + more
    return f"2026-03-01T12:{seconds // 60:02}:{seconds % 60:02}.000Z"


def _milliseconds(number: int, more: int = 0) -> int:
    return 1_772_366_400_000 + (number * 5 + more) * 1_000


def pi(calls: list[str], session: str = "01a2-1") -> Iterator[dict[str, Any]]:
    """Yield a session of pi in which each of `calls` is one model response with its result."""
    usage = {"input": 200, "output": 50, "cacheRead": 800, "cacheWrite": 0, "cost": {"total": 0}}
    yield {"type": "session", "version": 3, "id": session, "timestamp": _at(0), "cwd": "/src"}

    def entry(number: int, **message: Any) -> dict[str, Any]:
        about = {"type": "message", "id": f"e{number}", "parentId": f"e{number - 1}"}
        return about | {"timestamp": _at(number // 2, number % 2), "message": message}

    yield entry(0, role="system", content="", sections={"preamble": "You are pi."})
    yield entry(1, role="user", content=[{"type": "text", "text": "Fix the tests"}])
    for number, command in enumerate(calls, 1):
        call = {"type": "toolCall", "id": f"c{number}", "name": "bash", "arguments": {"command": command}}
        names = {"provider": "openai", "model": "gpt-x", "responseId": f"r{number}"}
        yield entry(2 * number, role="assistant", content=[call], usage=usage, **names)
        text = [{"type": "text", "text": said_by(command)}]
        answer = {"toolCallId": f"c{number}", "toolName": "bash", "content": text, "isError": False}
        yield entry(2 * number + 1, role="toolResult", **answer)


def qwen_code(calls: list[str], session: str = "afb2-1") -> Iterator[dict[str, Any]]:
    """Yield a session of Qwen Code in which each of `calls` is one model response with its result."""

    def entry(kind: str, number: int, **more: Any) -> dict[str, Any]:
        about = {"uuid": f"{kind}{number}", "parentUuid": None, "sessionId": session, "cwd": "/src"}
        return about | {"timestamp": _at(number), "type": kind, "version": "0.24.4"} | more

    said = {"role": "user", "parts": [{"text": "Fix the tests"}]}
    yield entry("user", 0, provenance="real_user", message=said)
    counts = {"promptTokenCount": 1000, "candidatesTokenCount": 30, "thoughtsTokenCount": 20}
    for number, command in enumerate(calls, 1):
        event = {"event.name": "qwen-code.api_response", "total_token_count": 1050}
        yield entry("system", number, subtype="ui_telemetry", systemPayload={"uiEvent": event})
        call = {"id": f"c{number}", "name": "run_shell_command", "args": {"command": command}}
        message = {"role": "model", "parts": [{"functionCall": call}]}
        yield entry("assistant", number, model="qwen-x", message=message, usageMetadata=counts)
        text = f"Output: {said_by(command)}\nProcess Group PGID: {7000 + number}"
        answer = {"id": f"c{number}", "name": "run_shell_command", "response": {"output": text}}
        shown = {"type": "shell_result", "exitCode": 0, "output": said_by(command)}
        result = {"callId": f"c{number}", "status": "success", "resultDisplay": shown}
        parts = {"role": "user", "parts": [{"functionResponse": answer}]}
        yield entry("tool_result", number, provenance="tool_result", message=parts, toolCallResult=result)


def cline(calls: list[str], session: str = "1772-1") -> Iterator[dict[str, Any]]:
    """Yield the document of a session of Cline in which each of `calls` is one model response with its result."""
    prompt = [{"type": "text", "text": '<user_input mode="act">Fix the tests</user_input>'}]
    messages: list[dict[str, Any]] = [{"id": "u0", "role": "user", "content": prompt, "ts": _milliseconds(0)}]
    metrics = {"inputTokens": 1000, "outputTokens": 50, "cacheReadTokens": 800, "cacheWriteTokens": 0}
    for number, command in enumerate(calls, 1):
        call = {"type": "tool_use", "id": f"c{number}", "name": "run_commands", "input": {"command": command}}
        about = {
            "modelInfo": {"id": "gpt-x", "provider": "openai"},
            "metrics": metrics,
            "ts": _milliseconds(number),
        }
        messages.append({"id": f"m{number}", "role": "assistant", "content": [call]} | about)
        done = [{"query": command, "result": said_by(command), "success": True}]
        answer = {"type": "tool_result", "tool_use_id": f"c{number}", "name": "run_commands", "content": done}
        messages.append(
            {"id": f"a{number}", "role": "user", "content": [answer], "ts": _milliseconds(number, 1)}
        )
    yield {"version": 1, "agent": "lead", "sessionId": session, "messages": messages}


def opencode(file: Path, sessions: dict[str, list[str]]) -> Path:
    """Write a database of OpenCode or Kilo with sessions in which each of the calls is one model response."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file)) as made, made:
        made.executescript(
            "CREATE TABLE credential (id text, secret text); INSERT INTO credential VALUES ('c', 'sk-secret');"
            "CREATE TABLE session (id text PRIMARY KEY, parent_id text, directory text NOT NULL);"
            "CREATE TABLE message (id text PRIMARY KEY, session_id text, time_created integer, data text);"
            "CREATE TABLE part (id text PRIMARY KEY, message_id text, session_id text, data text);"
        )
        for session, calls in sessions.items():
            made.execute("INSERT INTO session VALUES (?, NULL, '/src')", [session])
            _add_message(made, session, 0, {"role": "user"}, {"type": "text", "text": "Fix the tests"})
            for number, command in enumerate(calls, 1):
                tokens = {"input": 200, "output": 30, "reasoning": 20, "cache": {"read": 800, "write": 0}}
                about = {
                    "role": "assistant",
                    "modelID": "gpt-x",
                    "providerID": "openai",
                    "tokens": tokens,
                    "cost": 0,
                }
                state = {"status": "completed", "input": {"command": command}, "output": said_by(command)}
                state |= {"metadata": {"exit": 0}, "time": {"end": _milliseconds(number, 1)}}
                part = {"type": "tool", "tool": "bash", "callID": f"c{number}", "state": state}
                _add_message(made, session, number, about, part)
    return file


def _add_message(made: sqlite3.Connection, session: str, number: int, data: Any, *parts: Any) -> None:
    data = data | {"time": {"created": _milliseconds(number)}}
    name = f"{session}-{number:04}"
    made.execute("INSERT INTO message VALUES (?, ?, ?, ?)", [name, session, number, json.dumps(data)])
    for place, part in enumerate(parts):
        made.execute(
            "INSERT INTO part VALUES (?, ?, ?, ?)", [f"{name}-{place}", name, session, json.dumps(part)]
        )
