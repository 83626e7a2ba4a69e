"""Plays a sample of the known systems' scenarios through the gateway: an agent before a model server, both scripted.

An answer of the gateway tells whether a call reached the agent, and how the answer ended. So what is compared is the
first call that does not reach the agent, and the text in its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx

from development.measuring import seed_scenarios as seeds
from development.measuring.differences import Played
from development.measuring.entry_points.installation import InstallationError, Json, Refused
from development.measuring.entry_points.scripted_model import MODEL
from development.measuring.entry_points.seeds import obstacle as obstacle_of_calls
from development.measuring.entry_points.stage import Stage

_TIMEOUT_SECONDS = 30.0
_WITHHOLDING = frozenset(("break", "chance", "terminate", "halt", "stop"))
_NOT_PLAYED = frozenset(("session", "run", "stream", "batch"))
_COMPARED = frozenset(("message_has", "finish_reason"))


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
