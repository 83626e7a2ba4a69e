"""A model server that repeats one tool call, in the protocols of the coding agents."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Json = dict[str, Any]
SHELLS = ("bash", "run_shell_command", "run_commands", "Execute", "exec")
"""What the hosts that ask for chat completions call their shell."""


class Script:
    """What the model does: so many turns with one shell command each, of `commands` in turn."""

    def __init__(self, turns, *commands):
        self.turns, self.commands, self.requests = turns, commands, []

    def next_command(self, results):
        return self.commands[results % len(self.commands)] if results < self.turns else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script, port):
        super().__init__(("127.0.0.1", port), Handler)
        self.script = script


class Handler(BaseHTTPRequestHandler):
    """Answers Anthropic's messages, OpenAI's responses and chat completions, and Gemini's streams."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_):
        """Print nothing."""

    def do_GET(self):
        self._json({"data": [], "models": []})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self.server.script.requests.append((self.path, body))
        path = self.path.partition("?")[0]
        if path.endswith("/messages"):
            self._anthropic(body)
        elif path.endswith("/responses"):
            self._responses(body)
        elif path.endswith("/chat/completions"):
            self._chat(body)
        elif "generatecontent" in path.lower():
            self._gemini(body, is_stream="stream" in path)
        elif path.endswith("count_tokens"):
            self._json({"input_tokens": 10})
        else:
            self._json({})

    def _json(self, document):
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events, *, named=False):
        lines = "".join(
            (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n"
            if isinstance(event, dict)
            else f"data: {event}\n\n"
            for event in events
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(lines)))
        self.end_headers()
        self.wfile.write(lines)

    def _anthropic(self, body):
        names = {tool.get("name") for tool in body.get("tools", ())}
        blocks = [b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"]]
        results = sum(block.get("type") == "tool_result" for block in blocks)
        command = self.server.script.next_command(results) if "Bash" in names else None
        block: Json = {"type": "text", "text": ""}
        reason = "end_turn"
        delta = {"type": "text_delta", "text": "done"}
        if command:
            block = {"type": "tool_use", "id": f"toolu_{results}", "name": "Bash", "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps({"command": command})}
            reason = "tool_use"
        message = {
            "id": f"msg_{results}", "type": "message", "role": "assistant", "model": body["model"], "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 10 + 100 * results, "output_tokens": 1},
        }  # fmt: skip
        if not body.get("stream"):
            self._json(message | {"content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"})
            return
        self._stream([
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 5}},
            {"type": "message_stop"},
        ], named=True)  # fmt: skip

    def _responses(self, body):
        items = body["input"] if isinstance(body["input"], list) else []
        results = sum(str(item.get("type", "")).endswith("_call_output") for item in items)
        names = [tool.get("name") or tool.get("type") for tool in body.get("tools", ())]
        command = self.server.script.next_command(results) if names else None
        item = {"type": "message", "id": "m", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "done", "annotations": []}]}  # fmt: skip
        if command:
            tool = next(
                (n for n in ("exec_command", "bash", "shell", "shell_command") if n in names), names[0]
            )
            arguments = {"exec_command": {"cmd": command}, "shell": {"command": ["sh", "-c", command]}}.get(
                tool, {"command": command, "description": "Run it"}
            )
            item = {"type": "function_call", "id": f"fc_{results}", "call_id": f"call_{results}", "name": tool,
                    "arguments": json.dumps(arguments), "status": "completed"}  # fmt: skip
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
                 "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
        response = {"id": f"resp_{results}", "object": "response", "status": "in_progress", "output": []}
        done = response | {"status": "completed", "output": [item], "usage": usage}
        self._stream([
            {"type": "response.created", "response": response, "sequence_number": 0},
            {"type": "response.output_item.added", "output_index": 0, "item": item, "sequence_number": 1},
            {"type": "response.output_item.done", "output_index": 0, "item": item, "sequence_number": 2},
            {"type": "response.completed", "response": done, "sequence_number": 3},
        ], named=True)  # fmt: skip

    def _chat(self, body):
        results = sum(message["role"] == "tool" for message in body["messages"])
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        shell = next((name for name in names if name in SHELLS), "")
        command = self.server.script.next_command(results) if shell else None
        delta: Json = {"role": "assistant", "content": "done"}
        reason = "stop"
        if command:
            arguments = json.dumps({"command": command, "description": "Run it"})
            call = {"index": 0, "id": f"call_{results}", "type": "function",
                    "function": {"name": shell, "arguments": arguments}}  # fmt: skip
            delta, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        chunk = {
            "id": f"c_{results}",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body["model"],
        }
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not body.get("stream"):
            self._json(chunk | {"object": "chat.completion", "usage": usage,
                                "choices": [{"index": 0, "message": delta, "finish_reason": reason}]})  # fmt: skip
            return
        self._stream([
            chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            chunk | {"choices": [], "usage": usage},
            "[DONE]",
        ])  # fmt: skip

    def _gemini(self, body, *, is_stream):
        parts = [part for content in body.get("contents", ()) for part in content.get("parts", ())]
        results = sum("functionResponse" in part for part in parts)
        names = [d["name"] for tool in body.get("tools", ()) for d in tool.get("functionDeclarations", ())]
        command = self.server.script.next_command(results) if "run_shell_command" in names else None
        part: Json = {"text": "done"}
        if not is_stream and not names:
            # Gemini CLI asks from time to time whether the run makes progress.
            progress = {
                "unproductive_state_analysis": "It makes progress.",
                "unproductive_state_confidence": 0,
            }
            part = {"text": json.dumps(progress)}
        elif command:
            part = {"functionCall": {"name": "run_shell_command", "args": {"command": command}}}
        document = {
            "candidates": [
                {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
            ],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
        }
        if is_stream:
            self._stream([document])
        else:
            self._json(document)


def serve(script, port=0):
    """Start the server, on a free port unless one is given; returns it and its address."""
    server = _Server(script, port)
    Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"
