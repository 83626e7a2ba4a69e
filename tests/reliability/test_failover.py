"""What clients get from `web` while the database is read-only, and when a standby takes over from its primary."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg
import pytest
from google.rpc import code_pb2, status_pb2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.plain_http import PLAIN

from .installation import ROOT, Installation, wait_until
from .standby import Pair, running_pair

AGENTS = 4
RECOVERY_SECONDS = 10
PROTOBUF = "application/x-protobuf"
SETTINGS = {"LOOPGUARD_MODE": "embedded", "LOOPGUARD_SECRET_KEY": secrets.token_hex(32)}
CALL = {"type": "call", "session": "s-1", "tool": "search_web", "arguments": {"q": "x"}}
HOOK = {"session_id": "s-1", "hook_event_name": "PreToolUse", "tool_name": "t", "tool_input": {}}


@dataclass
class Place:
    """A pair of servers, and a `web` and a key on them."""

    pair: Pair
    client: httpx.Client
    url: str
    logs: Installation

    def guard(self, session: str = "s-1", call_id: str = "") -> httpx.Response:
        call = {"tool": "search_web", "arguments": {"q": "x"}} | ({"call_id": call_id} if call_id else {})
        return self.client.post("/api/v1/guard", json={"session": session, "calls": [call]})

    def answers(self) -> bool:
        return self.guard("probe").status_code == 200

    def writes(self) -> dict[str, httpx.Response]:
        """Send something through each entry point that writes."""
        lines, span = {"Content-Type": "application/x-ndjson"}, {"Content-Type": PROTOBUF}
        sent: dict[str, dict[str, Any]] = {
            "/events": {"json": CALL},
            "/events?": {"content": json.dumps(CALL).encode(), "headers": lines},
            "/guard": {"json": {"session": "s-1", "calls": [{"tool": "t", "arguments": {}}]}},
            "/hooks/codex": {"json": HOOK},
            "/sessions/s-1/stop": {"json": {}},
            "/imports": {"json": [CALL]},
            "/otlp/v1/traces": {"content": SPANS, "headers": span},
        }
        with ThreadPoolExecutor(len(sent)) as senders:
            answers = {
                path: senders.submit(self.client.post, f"/api/v1{path}", **one) for path, one in sent.items()
            }
            return {path: answer.result() for path, answer in answers.items()}


def spans() -> bytes:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8)
    for key, value in {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t", "gen_ai.tool.call.arguments": "{}",
    }.items():  # fmt: skip
        span.attributes.add(key=key).value.string_value = value
    return request.SerializeToString()


SPANS = spans()


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    with running_pair(tmp_path, "loopguard") as pair:
        environment = {**os.environ, **SETTINGS, "DATABASE_URL": pair.url}
        result = tmp_path / "prepared.json"
        subprocess.run(
            [sys.executable, "manage.py", "prepare", "--result", str(result)],
            cwd=ROOT, env=environment, check=True, timeout=180, capture_output=True,
        )  # fmt: skip
        key = json.loads(result.read_text())["api_key"]
        installation = Installation(os.environ["REDIS_URL"], tmp_path, DATABASE_URL=pair.url, **SETTINGS)
        try:
            installation.start_web()
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=installation.url, headers=headers, timeout=20, verify=PLAIN) as client:
                yield Place(pair, client, installation.url, installation)
        finally:
            installation.stop()


def check_unavailable(answers: dict[str, httpx.Response]) -> None:
    for name, answer in answers.items():
        assert answer.status_code == 503, (name, answer.text)
        assert int(answer.headers["retry-after"]) >= 1, name
        if not name.startswith("/otlp"):
            assert answer.headers["content-type"] == "application/problem+json", name
            assert answer.json()["code"] == "unavailable", name
    status = status_pb2.Status.FromString(answers["/otlp/v1/traces"].content)
    assert (answers["/otlp/v1/traces"].headers["content-type"], status.code) == (
        PROTOBUF,
        code_pb2.UNAVAILABLE,
    )


@dataclass
class Agent:
    """Sends calls until it is told to end, and each of them until it is acknowledged."""

    place: Place
    name: str
    ended: threading.Event
    acknowledged: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def run(self) -> None:
        for number in itertools.count():
            if self.ended.is_set():
                return
            call_id = f"{self.name}-{number}"
            through_guard = number % 2 == 0
            event = CALL | {"session": self.name, "call_id": call_id, "id": call_id}
            while True:
                answer = (
                    self.place.guard(self.name, call_id)
                    if through_guard
                    else self.place.client.post("/api/v1/events", json=event)
                )
                self.statuses[answer.status_code] += 1
                if answer.status_code < 300:
                    self.acknowledged.append(call_id)
                    break
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), answer.text
                if self.ended.is_set():
                    return
                time.sleep(0.1)


@pytest.mark.promise("REL-37")
def test_a_database_that_becomes_read_only_and_a_failover_lose_nothing_that_was_acknowledged(place):
    becomes_read_only(place)
    fails_over(place)


def becomes_read_only(place: Place) -> None:
    """Reject every write, on open connections as on new ones, until it is allowed again."""
    assert place.guard("s-1", "first").status_code == 200  # the session that one of the writes stops
    assert {answer.status_code for answer in place.writes().values()} <= {200, 201, 202}
    form = re.search('name="csrfmiddlewaretoken" value="([^"]+)"', place.client.get("/sign-in").text)
    assert form is not None
    place.pair.set_read_only(is_read_only=True)
    assert wait_until(lambda: not place.answers())
    check_unavailable(place.writes())
    assert place.client.get("/readyz").status_code == 503
    assert place.client.get("/healthz").status_code == 200
    page = place.client.post(
        "/sign-in",
        data={"username": "a", "password": "b", "csrfmiddlewaretoken": form[1]},
        headers={"Referer": place.url},
    )
    assert (page.status_code, page.headers["retry-after"]) == (503, "2"), page.text
    assert "Database unavailable" in page.text
    place.pair.set_read_only(is_read_only=False)
    assert wait_until(place.answers, RECOVERY_SECONDS), place.logs.logs()
    assert wait_until(lambda: place.client.get("/readyz").status_code == 200)
    assert {answer.status_code for answer in place.writes().values()} <= {200, 201, 202}


def fails_over(place: Place) -> None:
    """Kill the primary under load and promote its standby; the guard answers again, and has lost nothing."""
    ended = threading.Event()
    agents = [Agent(place, f"agent-{number}", ended) for number in range(AGENTS)]
    with ThreadPoolExecutor(AGENTS) as pool:
        runs = [pool.submit(agent.run) for agent in agents]
        try:
            assert wait_until(lambda: all(len(agent.acknowledged) > 5 for agent in agents))
            place.pair.kill_primary()
            assert wait_until(lambda: place.client.get("/readyz").status_code == 503)
            check_unavailable(place.writes())
            place.pair.promote()
            assert wait_until(place.answers, RECOVERY_SECONDS), place.logs.logs()
            assert wait_until(lambda: place.client.get("/readyz").status_code == 200)
            counts = [len(agent.acknowledged) for agent in agents]
            assert wait_until(
                lambda: all(
                    len(one.acknowledged) > count + 5 for one, count in zip(agents, counts, strict=True)
                )
            )
        finally:
            ended.set()
        for run in runs:
            run.result()
    with psycopg.connect(place.pair.standby.url("loopguard")) as database:
        stored = database.execute("SELECT call_id, count(*) FROM detection_event GROUP BY call_id").fetchall()
    counted: dict[Any, Any] = dict(stored)
    for agent in agents:
        assert [call for call in agent.acknowledged if counted.get(call) != 1] == []
        assert {*agent.statuses} <= {200, 202, 503}
