"""``loopguard mcp -- COMMAND``: runs an MCP server on stdio and guards the calls of its tools.

MCP on stdio is one JSON document per line. Every line passes unchanged, byte by byte, except requests of
``tools/call`` that must not run, and results that need a warning. New versions of the protocol therefore need no new
version of this.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from loopguard_client import wire
from loopguard_client.calls import Call, Verdict
from loopguard_client.guard import Guard

WAIT_SECONDS: Final = 5.0
"""How long a server may take to end once it has closed its output, or was asked to."""


class McpProxy:
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
        self._guard, self._command = guard, command
        guard.sent_by("mcp")
        name = session or wire.new_id(f"mcp-{Path(command[0]).name}-")
        self._session = guard.session(name)
        self._lock = threading.Lock()
        # One lock for each direction: a server that writes while it does not read must not block its own output.
        self._to_server, self._to_client = threading.Lock(), threading.Lock()
        self._checks: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._checking: set[str] = set()
        self._cancelled: set[str] = set()
        self._running: dict[str, Verdict] = {}

    def run(self, source: IO[bytes], target: IO[bytes]) -> int:
        """Pass lines on until the server ends, and return its exit status.

        Parameters
        ----------
        source, target
            The streams that the client writes to and reads from.
        """
        self._target = target
        with subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            if server.stdin is None or server.stdout is None:
                raise RuntimeError("The server has no pipes.")
            self._server = server.stdin
            self._pass_signals(server)
            reader = threading.Thread(target=self._read_client, args=(source,), daemon=True)
            reader.start()
            for line in server.stdout:
                self._write_to_client(self._from_server(line))
            status = _ended(server)
        self._guard.close()
        return status if status >= 0 else 128 - status

    def _pass_signals(self, server: subprocess.Popen[bytes]) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda received, _: server.send_signal(received))

    def _read_client(self, source: IO[bytes]) -> None:
        for line in source:
            for message, raw in _messages(line):
                self._from_client(message, raw)
        deadline = time.monotonic() + WAIT_SECONDS
        for check in list(self._checks):  # their calls still have to reach the server
            check.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(OSError):
            self._server.close()

    def _from_client(self, message: Any, raw: bytes) -> None:
        method = message.get("method") if isinstance(message, dict) else None
        parameters = message.get("params") if isinstance(message, dict) else None
        parameters = parameters if isinstance(parameters, dict) else {}
        if method == "tools/call" and "id" in message and isinstance(parameters.get("name"), str):
            number = json.dumps(message["id"])
            with self._lock:
                self._checking.add(number)
            # A check may take a while; other messages must not wait for it.
            check = threading.Thread(target=self._check, args=(message, parameters, number, raw), daemon=True)
            self._checks.add(check)
            check.start()
            return
        if method == "initialize" and isinstance(parameters.get("clientInfo"), dict):
            self._session.agent = self._session.agent or str(parameters["clientInfo"].get("name", ""))
        if method == "notifications/cancelled":
            with self._lock:
                if (number := json.dumps(parameters.get("requestId"))) in self._checking:
                    self._cancelled.add(number)
                    return
        self._write_to_server(raw)

    def _check(self, message: dict[str, Any], parameters: dict[str, Any], number: str, raw: bytes) -> None:
        arguments = parameters.get("arguments")
        call = Call(parameters["name"], arguments if isinstance(arguments, dict) else {}, wire.new_id("mcp_"))
        verdict = self._session.check_calls([call])[0]
        with self._lock:
            self._checking.discard(number)
            is_cancelled = number in self._cancelled
            self._cancelled.discard(number)
            if verdict.may_run and not is_cancelled:
                self._running[number] = verdict
        if is_cancelled:
            self._session.result(verdict, "Cancelled before it ran.", is_error=True)
        elif verdict.may_run:
            self._write_to_server(raw)
        else:
            # `resultType` since the version 2026-07-28; older ones ignore it.
            content = [{"type": "text", "text": verdict.message}]
            result = {"content": content, "isError": not verdict.is_answer, "resultType": "complete"}
            self._write_to_client(_line({"jsonrpc": "2.0", "id": message["id"], "result": result}))

    def _from_server(self, line: bytes) -> bytes:
        if not self._running:
            return line
        try:
            message = json.loads(line)
        except ValueError:
            return line
        if not isinstance(message, dict) or "id" not in message or "method" in message:
            return line
        with self._lock:
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
        return _line(message)

    def _write_to_server(self, line: bytes) -> None:
        with self._to_server:
            _write(self._server, line)

    def _write_to_client(self, line: bytes) -> None:
        with self._to_client:
            _write(self._target, line)


def run(guard: Guard, command: Sequence[str], *, session: str = "") -> int:
    """Guard an MCP server on the standard streams of this process, and return its exit status."""
    # Not `sys.stdin`: at its end, Python aborts while a thread reads that. To close this one would wait for the thread.
    source = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
    return McpProxy(guard, command, session=session).run(source, sys.stdout.buffer)


def _write(target: IO[bytes], line: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # the other side has gone
        target.write(line)
        target.flush()


def _ended(server: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a server that has closed its output; end it if it does not end by itself."""
    for end in (server.terminate, server.kill):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return server.wait(WAIT_SECONDS)
        end()
    return server.wait(WAIT_SECONDS)


def _messages(line: bytes) -> list[tuple[Any, bytes]]:
    """Return the messages of a line with their bytes. A batch with calls is split; anything else stays as it is."""
    if b"tools/call" not in line and b"initialize" not in line and b"cancelled" not in line:
        return [(None, line)]
    try:
        document = json.loads(line)
    except ValueError:
        return [(None, line)]
    if isinstance(document, list):
        return [(message, _line(message)) for message in document]
    return [(document, line)]


def _line(message: Any) -> bytes:
    return (
        json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        + b"\n"
    )


def _text(content: Any) -> Any:
    """Return the text of a result; parts that are not text count as what they are."""
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" for part in content
    ):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content
