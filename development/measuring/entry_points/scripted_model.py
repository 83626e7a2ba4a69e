"""A scripted model server, behind the gateway of the installation that is measured."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from development.measuring.entry_points.installation import Json

MODEL = "scenario"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a model server answers."""

    calls: list[Json]
    text: str | None
    insists: bool = False


_DONE = _Answer([], "Done.")


class ScriptedModel:
    """A model server on this machine: gives each scenario the answer that was put there for it, once.

    Parameters
    ----------
    port
        Of the loopback address.
    """

    def __init__(self, port: int) -> None:
        self._answers: dict[str, _Answer] = {}
        self._requests: dict[str, list[Json]] = {}
        self._numbers = itertools.count(1)
        model = self

        class ModelHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = json.dumps(model._answer(body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), ModelHandler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def put(
        self, mark: str, tool_calls: list[Json], *, text: str | None = None, insists: bool = False
    ) -> None:
        """Let the next answer to a conversation be these calls or this text; those after it are another text.

        Parameters
        ----------
        mark
            The first message of the conversation, or its model if that is not `MODEL`.
        insists
            Give the same answer whenever it is asked again, with new ids, unless no tool may be called.
        """
        self._answers[mark] = _Answer(tool_calls, text, insists)
        self._requests[mark] = []

    def requests_of(self, mark: str) -> list[Json]:
        """Return the requests about a conversation since its last answer was put there."""
        return self._requests[mark]

    def _answer(self, body: Json) -> Json:
        mark = str(body["messages"][0]["content"] if body["model"] == MODEL else body["model"])
        answer = self._answers.get(mark, _DONE)
        self._requests.setdefault(mark, []).append(body)
        number = next(self._numbers)  # an answer has an id of its own: it is the round of its calls
        calls = answer.calls
        if not answer.insists:
            self._answers[mark] = _DONE
        elif body.get("tool_choice") == "none":
            calls = []
        elif len(self._requests[mark]) > 1:
            calls = [{**call, "id": f"{call['id']}_{number}"} for call in calls]
        text = None if calls else answer.text
        message: Json = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = calls
        finish = "tool_calls" if calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [choice],
        }

    @contextmanager
    def running(self) -> Iterator[ScriptedModel]:
        """Answer requests within the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(5)
