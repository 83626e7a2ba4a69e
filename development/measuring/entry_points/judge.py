"""A judge that answers as scenarios say: an OpenAI-compatible model server on this machine."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


class ScriptedJudge:
    """Answers each request by the mark of its scenario, which stands in the user's request.

    Parameters
    ----------
    port
        Of the loopback address; 0 for any free one.
    """

    def __init__(self, port: int) -> None:
        self._replies: dict[str, deque[Any]] = {}
        self._requests: dict[str, list[Json]] = {}
        judge = self

        class JudgeHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = judge._reply(body)
                message = {"role": "assistant", "content": reply}
                document = {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
                answer = json.dumps(document).encode()
                self.send_response(200 if isinstance(reply, str) else 500)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), JudgeHandler)
        self._server.daemon_threads = True

    def expect(self, mark: str, replies: list[Any]) -> None:
        """Answer the requests with a mark by these replies in turn; anything but a text is an error of the server."""
        self._replies[mark], self._requests[mark] = deque(replies), []

    def request_of(self, mark: str) -> Json:
        """Return the last request with a mark, empty if there was none."""
        return self._requests[mark][-1] if self._requests[mark] else {}

    def _reply(self, body: Json) -> Any:
        text = "".join(str(message.get("content")) for message in body["messages"])
        for mark, replies in self._replies.items():
            if mark in text:
                self._requests[mark].append(body)
                return replies.popleft() if replies else None
        return None

    @contextmanager
    def running(self) -> Iterator[ScriptedJudge]:
        """Answer requests within the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(5)
