"""An editor that speaks the Agent Client Protocol with an agent."""

from __future__ import annotations

import json


class Editor:
    """A client that allows everything, once.

    Without a name it takes the one that the agent gives to the session.
    """

    def __init__(self, process, name="", *, pause=lambda: None):
        self.process, self.name, self.number, self.pause = process, name, 0, pause
        self.asked = self.told = ""
        self.updates = []

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method, **parameters):
        """Send a request, and serve the agent until its answer is there."""
        self.number += 1
        self.send({"id": self.number, "method": method, "params": parameters})
        while True:
            message = json.loads(self.process.stdout.readline() or '{"method": "the agent has ended"}')
            assert message.get("method") != "the agent has ended"
            if message.get("method") == "session/request_permission":
                self.asked += "?"
                options = message["params"]["options"]
                chosen = next(one["optionId"] for one in options if one["kind"] == "allow_once")
                outcome = {"outcome": "selected", "optionId": chosen}
                self.send({"id": message["id"], "result": {"outcome": outcome}})
            elif message.get("method") == "session/update":
                update = message["params"]["update"]
                self.updates.append(update)
                if update["sessionUpdate"] == "agent_message_chunk":
                    self.told += update["content"]["text"]
            elif message.get("method") == "_wait":
                self.pause()
                self.send({"id": message["id"], "result": {}})
            elif message.get("id") == self.number:
                assert "result" in message, message
                return message["result"]

    def begin(self, cwd="/src"):
        self.request(
            "initialize",
            protocolVersion=1,
            clientCapabilities={},
            clientInfo={"name": "editor", "version": "1"},
        )
        given = self.request("session/new", cwd=str(cwd), mcpServers=[])["sessionId"]
        self.name = self.name or given
        assert given == self.name

    def prompt(self, text):
        prompt = [{"type": "text", "text": text}]
        return self.request("session/prompt", sessionId=self.name, prompt=prompt)["stopReason"]
