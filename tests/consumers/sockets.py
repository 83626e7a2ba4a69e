"""A browser's end of a socket, without a network."""

from __future__ import annotations

import json
from typing import Any

from asgiref.testing import ApplicationCommunicator

from tests.support.patience import PATIENCE_SECONDS


class Socket(ApplicationCommunicator):
    """Speaks ASGI to an application as a server would for one browser."""

    def __init__(self, application: Any, path: str, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": b"",
            "headers": headers or [],
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        super().__init__(application, scope)

    async def connect(self) -> int | None:
        """Open; return None when accepted, else the status of the rejection."""
        await self.send_input({"type": "websocket.connect"})
        answer = await self.receive_output(timeout=PATIENCE_SECONDS)
        if answer["type"] == "websocket.accept":
            return None
        body = await self.receive_output(timeout=PATIENCE_SECONDS)
        assert json.loads(body["body"])["status"] == answer["status"]
        await self.wait(timeout=PATIENCE_SECONDS)
        return int(answer["status"])

    async def send(self, message: Any) -> None:
        await self.send_input({"type": "websocket.receive", "text": json.dumps(message)})

    async def frame(self) -> dict[str, Any]:
        event = await self.receive_output(timeout=PATIENCE_SECONDS)
        assert event["type"] == "websocket.send", event
        frame: dict[str, Any] = json.loads(event["text"])
        return frame

    async def closing_code(self) -> int:
        """Read until the server closes; return its code."""
        while True:
            event = await self.receive_output(timeout=PATIENCE_SECONDS)
            if event["type"] == "websocket.close":
                return int(event["code"])

    async def leave(self) -> None:
        """Close from the browser's side and wait until the application is done."""
        await self.send_input({"type": "websocket.disconnect", "code": 1001})
        await self.wait(timeout=PATIENCE_SECONDS)
