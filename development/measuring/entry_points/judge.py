"""A judge that answers as scenarios say: an OpenAI-compatible model server on this machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from development.scripted_server import ScriptedServer

Json = dict[str, Any]


class ScriptedJudge(ScriptedServer):
    """Answers each request by the mark of its scenario, which stands in the user's request."""

    def __init__(self, port: int) -> None:
        self._replies: dict[str, deque[Any]] = {}
        self._requests: dict[str, list[Json]] = {}
        super().__init__(port)

    def expect(self, mark: str, replies: list[Any]) -> None:
        """Answer the requests with a mark by these replies in turn; anything but a text is an error of the server."""
        self._replies[mark], self._requests[mark] = deque(replies), []

    def request_of(self, mark: str) -> Json:
        """Return the last request with a mark, empty if there was none."""
        return self._requests[mark][-1] if self._requests[mark] else {}

    def answer(self, asked: Json, _headers: Mapping[str, str]) -> tuple[int, Json, Mapping[str, str]]:
        """Answer by the mark."""
        reply = self._reply(asked)
        message = {"role": "assistant", "content": reply}
        document = {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        return (200 if isinstance(reply, str) else 500), document, {}

    def _reply(self, body: Json) -> Any:
        text = "".join(str(message.get("content")) for message in body["messages"])
        for mark, replies in self._replies.items():
            if mark in text:
                self._requests[mark].append(body)
                return replies.popleft() if replies else None
        return None
