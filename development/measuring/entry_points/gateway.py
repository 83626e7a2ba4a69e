"""Plays a sample of the known systems' scenarios through the gateway: an agent before a model server, both scripted.

An answer of the gateway tells whether a call reached the agent, and how the answer ended. So what is compared is the
first call that does not reach the agent, and the text in its place.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from development.measuring import seed_scenarios as seeds
from development.measuring.differences import Played
from development.measuring.entry_points.installation import InstallationError, Json, Refused
from development.measuring.entry_points.seeds import obstacle as obstacle_of_calls
from development.measuring.entry_points.stage import MODEL, Stage

_TIMEOUT_SECONDS = 30.0
_WITHHOLDING = frozenset(("break", "chance", "terminate", "halt", "stop"))
_NOT_PLAYED = frozenset(("session", "run", "stream", "batch"))
_COMPARED = frozenset(("message_has", "finish_reason"))


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


def not_in_sample(_scenario: Json, _stage: Stage) -> str:
    """Return why no situation of an agent is played."""
    return "is no scenario of a known system, of which alone the gateway plays a sample"


def obstacle(scenario: Json, stage: Stage) -> str:
    """Return why a scenario is not played through the gateway, empty if it is."""
    if stage.model is None:
        return "needs a model server: an installation with LOOPGUARD_GATEWAY_UPSTREAMS, and its port as --model-port"
    expect = scenario.get("expect", {})
    calls = scenario.get("calls", [])
    first = next(iter(expect.get("detections", ())), None)
    is_seen = first is None or first["action"] in _WITHHOLDING
    is_of_calls = all(isinstance(one.get("args", {}), dict) and not _NOT_PLAYED & one.keys() for one in calls)
    if not calls or not is_seen or not is_of_calls or "final" in expect or "notices" in expect:
        return (
            "is not in the sample of the gateway: one conversation, and calls that reach the agent or do not"
        )
    if any(one.get("control") not in (None, "command") for one in calls):
        return "changes settings in another way than in the chat"
    return obstacle_of_calls(scenario, stage)


class GatewayPlay:
    """A scenario on its way through the gateway; `played` is set when it is over."""

    def __init__(self, scenario: Json, stage: Stage) -> None:
        self._scenario, self._stage = scenario, stage
        self._entries = [*seeds.expand(scenario.get("calls", []))]
        self.mark = f"{stage.prefix}/{scenario['id']}"
        self._messages: list[Json] = [{"role": "user", "content": self.mark}]
        self._address = ""
        self.played = Played(scenario["id"], {}, ("it was not played to its end",))

    def steps(self) -> Iterator[float]:
        """Play; yield the time of each step before it is taken."""
        settings = seeds.settings_of(self._scenario)
        withheld, problems = None, ["it was not played to its end"]
        try:
            self._address = self._stage.gateway_of(settings.own, settings.model | settings.session)
            index = 0
            for entry in self._entries:
                if "control" in entry:
                    self._command(entry["text"])
                    continue
                yield float(entry.get("t", index))
                choice = self._call(entry, index)
                if not choice["message"].get("tool_calls"):
                    withheld = {"i": index, **_told(choice)}
                    break
                index += 1
            problems = [*self._differences(withheld)]
        except Refused as error:
            problems = [str(error)]
        got: Json = {"first": withheld["i"] if withheld else None, "withheld": withheld}
        self.played = Played(self._scenario["id"], got, tuple(problems))

    def _call(self, entry: Json, index: int) -> Json:
        """Let the model make a call; return the choice of the answer. A call that arrived is run."""
        arguments = json.dumps(entry.get("args") or {})
        function = {"name": entry["tool"], "arguments": arguments}
        call = {"id": f"call-{index}", "type": "function", "function": function}
        if self._stage.model is not None:
            self._stage.model.put(self.mark, [call])
        choice = self._ask()
        message = choice["message"]
        if message.get("tool_calls"):
            result = {
                "role": "tool",
                "tool_call_id": f"call-{index}",
                "content": str(entry.get("result", "ok")),
            }
            self._messages += [message, result]
        return choice

    def _command(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        self._messages.append(self._ask()["message"])

    def _ask(self) -> Json:
        return chat_completion(
            self._stage, self._address, self.mark, {"model": MODEL, "messages": self._messages}
        )

    def _differences(self, withheld: Json | None) -> Iterator[str]:
        wanted = next(iter(self._scenario.get("expect", {}).get("detections", ())), None)
        expected, got = wanted and wanted["i"], withheld and withheld["i"]
        if expected != got:
            yield f"first call that does not reach the agent: expected {expected}, got {got}"
        elif wanted and withheld:
            yield from seeds.value_problems({n: wanted[n] for n in _COMPARED & wanted.keys()}, withheld)


def _told(choice: Json) -> Json:
    return {"message": choice["message"].get("content") or "", "finish_reason": choice["finish_reason"]}


def chat_completion(stage: Stage, address: str, session: str, body: Json, agent: str = "") -> Json:
    """Ask for an answer through the gateway, and return its choice.

    Raises
    ------
    Refused
        When there is none.
    InstallationError
        When no gateway answers.
    """
    headers = {"LoopGuard-Key": stage.installation.key, "LoopGuard-Session": session}
    if agent:
        headers["LoopGuard-Agent"] = agent
    try:
        answer = httpx.post(
            f"{address}/chat/completions",
            json=body,
            headers=headers | {"Authorization": "Bearer sk-scenario"},
            timeout=_TIMEOUT_SECONDS,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        raise InstallationError(
            f"No gateway answers at {address}: {str(error) or type(error).__name__}"
        ) from None
    if answer.status_code != 200:
        raise Refused(f"POST {address}", answer.status_code, {"detail": answer.text[:300]})
    choice: Json = answer.json()["choices"][0]
    return choice
