"""``loopguard mcp -- COMMAND``: runs an MCP server on stdio and guards the calls of its tools.

Requests of ``tools/call`` that must not run do not reach the server, and results may get a warning; see `stdio`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loopguard_client import wire
from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard
from loopguard_client.stdio import StdioProxy, run_on_stdio, to_line


class McpProxy(StdioProxy):
    """One MCP server behind its client; one process is one session.

    Parameters
    ----------
    guard : Guard
        The guard of the process.
    command : sequence of str
        The server and its arguments.
    session : str
        Name of the session; a new one by default.
    """

    def __init__(self, guard: Guard, command: Sequence[str], *, session: str = "") -> None:
        super().__init__(guard, command)
        guard.sent_by("mcp")
        self._session = guard.session(session or wire.new_id(f"mcp-{Path(command[0]).name}-"))
        self._checking: set[str] = set()
        self._cancelled: set[str] = set()
        self._running: dict[str, Verdict] = {}

    def from_client(self, line: bytes) -> None:
        """Check the calls in a line, and pass everything else on."""
        for message, raw in _messages(line):
            self._from_client(message, raw)

    def from_program(self, line: bytes) -> None:
        """Pass a line on; the result of a call with its warning, if there is one."""
        self.write_to_client(self._from_server(line))

    def _from_client(self, message: Any, raw: bytes) -> None:
        method = message.get("method") if isinstance(message, dict) else None
        parameters = message.get("params") if isinstance(message, dict) else None
        parameters = parameters if isinstance(parameters, dict) else {}
        if method == "tools/call" and "id" in message and isinstance(parameters.get("name"), str):
            number = json.dumps(message["id"])
            with self.lock:
                self._checking.add(number)
            self.start_check(self._check, message, parameters, number, raw)
            return
        if method == "initialize" and isinstance(parameters.get("clientInfo"), dict):
            self._session.agent = self._session.agent or str(parameters["clientInfo"].get("name", ""))
        if method == "notifications/cancelled":
            with self.lock:
                if (number := json.dumps(parameters.get("requestId"))) in self._checking:
                    self._cancelled.add(number)
                    return
        self.write_to_program(raw)

    def _check(self, message: dict[str, Any], parameters: dict[str, Any], number: str, raw: bytes) -> None:
        arguments = parameters.get("arguments")
        call = Call(parameters["name"], arguments if isinstance(arguments, dict) else {}, wire.new_id("mcp_"))
        verdict = self._session.check_calls([call])[0]
        with self.lock:
            self._checking.discard(number)
            is_cancelled = number in self._cancelled
            self._cancelled.discard(number)
            if verdict.may_run and not is_cancelled:
                self._running[number] = verdict
        if is_cancelled:
            self._session.result(verdict, "Cancelled before it ran.", is_error=True)
        elif verdict.may_run:
            self.write_to_program(raw)
        else:
            # `resultType` since the version 2026-07-28; older ones ignore it.
            content = [{"type": "text", "text": verdict.message}]
            result = {"content": content, "isError": not verdict.is_answer, "resultType": "complete"}
            self.write_to_client(to_line({"jsonrpc": "2.0", "id": message["id"], "result": result}))

    def _from_server(self, line: bytes) -> bytes:
        if not self._running:
            return line
        try:
            message = json.loads(line)
        except ValueError:
            return line
        if not isinstance(message, dict) or "id" not in message or "method" in message:
            return line
        with self.lock:
            verdict = self._running.pop(json.dumps(message["id"]), None)
        if verdict is None:
            return line
        result = message.get("result")
        if not isinstance(result, dict):
            self._session.result(verdict, message.get("error"), is_error=True)
            return line
        content = result.get("content")
        self._session.result(verdict, _text(content), is_error=result.get("isError") is True)
        if verdict.decision != "warn" or not isinstance(content, list):
            return line
        result["content"] = [{"type": "text", "text": verdict.message}, *content]
        return to_line(message)


def run(guard: Guard, command: Sequence[str], *, session: str = "") -> int:
    """Guard an MCP server on the standard streams of this process, and return its exit status."""
    return run_on_stdio(McpProxy(guard, command, session=session))


def _messages(line: bytes) -> list[tuple[Any, bytes]]:
    """Return the messages of a line with their bytes. A batch with calls is split; anything else stays as it is."""
    if b"tools/call" not in line and b"initialize" not in line and b"cancelled" not in line:
        return [(None, line)]
    try:
        document = json.loads(line)
    except ValueError:
        return [(None, line)]
    if isinstance(document, list):
        return [(message, to_line(message)) for message in document]
    return [(document, line)]


def _text(content: Any) -> Any:
    """Return the text of a result; parts that are not text count as what they are."""
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" for part in content
    ):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content
