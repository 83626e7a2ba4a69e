"""What every client does alike: cases of `clients/shared_cases.json`, against a server that can be away.

A case has options of the guard and steps. The first key of a step says what is done, the others what is expected:

`check`
    A call, or a list of the calls of one response; with `times`, again and again. Each call that may run is
    followed by `result`, if the step has it (`#` is its number). `expect` lists the decisions, and further keys what each
    field of the verdicts is.
`together`
    Checks of calls that start at the same time; `runs` says how many may run.
`proxy`
    From now on, the server is reached in this mode of `Proxy`.
`server`, `policy`, `approve`
    A request to the server, a change of the session's policy, and the decision about the next held call.
`requests`
    What the client has sent since the last such step.
`stored`, `outcome`
    Fields of the session's calls, and its outcome, which the server has in the end.
`status`
    Fields of the guard's status in the end.
anything else
    An operation of the client.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .case_clients import CLIENTS
from .proxy import Proxy

PATIENT = 20.0
CASES = json.loads((Path(__file__).resolve().parents[2] / "shared_cases.json").read_text(encoding="utf-8"))


@pytest.fixture
def proxy(server) -> Iterator[Proxy]:
    with Proxy(server.url).running() as running:
        yield running


@pytest.mark.parametrize("language", CLIENTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_client_passes_the_shared_cases(server, proxy, name, case, language):
    with CLIENTS[language]() as client:
        Run(client, server, proxy, name, case)
        proxy.released.set()


class Run:
    """One case with one client."""

    def __init__(self, client: Any, server: Any, proxy: Proxy, name: str, case: dict[str, Any]) -> None:
        self.client, self.server, self.proxy, self.name = client, server, proxy, name
        options = {"url": proxy.url, "key": server.key, "budget_seconds": PATIENT, **case.get("guard", {})}
        options["key"] = options["key"].replace("{wrong}", f"{server.key[:-4]}0000")
        client.do("guard", session=name, about=case.get("about", {}), **options)
        self.reasons = {"{url}": proxy.url, "{name}": name}
        for number, step in enumerate(case["steps"]):
            kind = next(iter(step))
            try:
                self.KINDS.get(kind, Run.operation)(self, kind, step)
            except AssertionError as error:
                error.add_note(f"step {number}: {step}")
                raise

    def operation(self, kind: str, step: dict[str, Any]) -> None:
        answer = self.client.do(kind, **_expanded(step[kind]))
        assert answer == step.get("expect", answer)

    def check(self, _: str, step: dict[str, Any]) -> None:
        calls = _expanded(step["check"])
        calls = calls if isinstance(calls, list) else [calls]
        verdicts: list[dict[str, Any]] = []
        for _time in range(step.get("times", 1)):
            given = self.client.do("check", calls=calls, round=step.get("round", ""))
            for verdict in given:
                verdicts.append(verdict)
                if verdict["may_run"] and "result" in step:
                    content = str(step["result"]).replace("#", str(len(verdicts)))
                    self.client.do("result", call_id=verdict["call_id"], content=content)
        self.compare([verdict["decision"] for verdict in verdicts], step.get("expect"))
        for field in step.keys() & verdicts[0].keys():
            expected = step[field] if isinstance(step[field], list) else [step[field]] * len(verdicts)
            self.compare([verdict[field] for verdict in verdicts], expected)

    def together(self, _: str, step: dict[str, Any]) -> None:
        verdicts = self.client.do("together", calls=step["together"])
        assert sum(verdict["may_run"] for verdict in verdicts) == step["runs"]

    def compare(self, found: list[Any], expected: list[Any] | None) -> None:
        """Compare values; a text that ends or begins with `…` is the beginning or the end of what is expected."""
        if expected is None:
            return
        assert len(found) == len(expected)
        for value, wanted in zip(found, expected, strict=True):
            text = wanted
            for place, word in self.reasons.items():
                text = text.replace(place, word) if isinstance(text, str) else text
            if isinstance(text, str) and text.endswith("…"):
                assert str(value).startswith(text[:-1])
            elif isinstance(text, str) and text.startswith("…"):
                assert str(value).endswith(text[1:])
            else:
                assert value == text

    def use_proxy(self, _: str, step: dict[str, Any]) -> None:
        self.proxy.mode = step["proxy"]

    def ask_server(self, _: str, step: dict[str, Any]) -> None:
        self.server.post(step["server"].replace("{name}", self.name), step.get("document", {}))

    def policy(self, _: str, step: dict[str, Any]) -> None:
        self.server.patch(f"/sessions/{self.name}/policy", step["policy"])

    def approve(self, _: str, step: dict[str, Any]) -> None:
        def decide() -> None:
            found: list[str] = []

            def is_held() -> bool:
                items = self.server.get("/approvals")["items"]
                found.extend(one["id"] for one in items if one["session"] == self.name)
                return bool(found)

            if _eventually(is_held):
                self.server.post(f"/approvals/{found[0]}/decision", {"choice": step["approve"]})

        threading.Thread(target=decide, daemon=True).start()

    def requests(self, _: str, step: dict[str, Any]) -> None:
        assert self.proxy.seen == step["requests"]
        self.proxy.seen.clear()

    def stored(self, _: str, step: dict[str, Any]) -> None:
        wanted = step["stored"]
        assert _eventually(lambda: len(self.server.calls(self.name)) >= len(wanted))
        _eventually(lambda: self.server.session(self.name)["pending_events"] == 0)
        calls = [
            {**call, "result": (call["result"] or {}).get("content")} for call in self.server.calls(self.name)
        ]
        assert len(calls) == len(wanted)
        for call, fields in zip(calls, wanted, strict=True):
            self.compare([call[field] for field in fields], list(fields.values()))

    def outcome(self, _: str, step: dict[str, Any]) -> None:
        assert _eventually(lambda: self.server.session(self.name)["outcome"] == step["outcome"])

    def status(self, _: str, step: dict[str, Any]) -> None:
        wanted = step["status"]

        def is_reached() -> bool:
            self.found = self.client.do("status")
            return all(self.found[field] == value for field, value in wanted.items() if field != "reason")

        assert _eventually(is_reached), self.found
        if "reason" in wanted:
            self.compare([self.found["reason"]], [wanted["reason"]])

    KINDS: dict[str, Callable[[Run, str, dict[str, Any]], None]] = {
        "check": check,
        "together": together,
        "proxy": use_proxy,
        "server": ask_server,
        "policy": policy,
        "approve": approve,
        "requests": requests,
        "stored": stored,
        "outcome": outcome,
        "status": status,
    }


def _expanded(value: Any) -> Any:
    """Return a value with each `{"repeat": [text, times]}` replaced by the text."""
    if isinstance(value, dict):
        if value.keys() == {"repeat"}:
            text, times = value["repeat"]
            return text * times
        return {name: _expanded(item) for name, item in value.items()}
    return [_expanded(item) for item in value] if isinstance(value, list) else value


def _eventually(check: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 2 * PATIENT
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
