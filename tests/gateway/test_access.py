"""Who may use the gateway, and whose credentials a backend sees."""

import contextlib
import io
import json
import logging
import socket
import threading
import time
from dataclasses import dataclass, field

import httpx
import pytest
from django.db import connection, transaction

from detection import logs
from detection.gateway import traffic
from detection.models import GatewayToken, GatewayTraffic, TrafficPeriod
from detection.services import keys
from detection.services.audit import SYSTEM
from detection.services.gateway import backends, grants
from detection.services.projects.projects import archive_project
from tests.support.model_answers import PATHS, answered, call
from tests.support.model_server import Answer, Asked
from tests.support.plain_http import PLAIN
from tests.support.projects import make_key, make_project

from .agents import Agent
from .conftest import World, wait_for


def asked(url, **headers):
    answer = httpx.get(url, headers=headers, timeout=20, verify=PLAIN)
    return answer.status_code, answer.json().get("error", {}).get("code")


def test_a_key_of_the_project_with_the_scope_guard_is_needed(world: World):
    url = f"{world.base_url()}/models"
    assert asked(url) == (401, "missing_key")
    assert asked(url, **{"LoopGuard-Key": "lg_nonsense"}) == (401, "unknown_key")
    assert asked(url, **{"LoopGuard-Key": make_key(world.project, scopes=["ingest"])}) == (
        403,
        "missing_scope",
    )
    assert asked(url, **{"LoopGuard-Key": make_key(make_project())}) == (404, "unknown_backend")
    assert asked(url, **{"LoopGuard-Key": world.key}) == (200, None)
    assert len(world.model.asked) == 1


def test_a_token_in_the_path_admits_to_its_backend_only(world: World):
    row, token = backends.create_token(world.project.pk, world.backend().public_id, SYSTEM, name="ci")
    assert asked(f"{world.base_url(token=token)}/models") == (200, None)
    assert world.model.asked[0].path == "/v1/models"
    assert token not in str(world.model.asked[0])
    assert asked(f"{world.base_url('anthropic', token)}/v1/models") == (404, "unknown_backend")
    assert asked(f"{world.base_url(token=token[:-1] + 'x')}/models") == (401, "unknown_key")
    answer = httpx.get(f"{world.url}/api/v1/sessions", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code in (401, 404)
    backends.revoke_token(world.project.pk, world.backend().public_id, row.public_id, SYSTEM)
    time.sleep(1)
    assert asked(f"{world.base_url(token=token)}/models") == (401, "unknown_key")


def test_a_revoked_key_stops_working_within_a_second(world: World):
    url, headers = f"{world.base_url()}/models", {"LoopGuard-Key": world.key}
    assert asked(url, **headers) == (200, None)
    keys.revoke_key(world.project, world.key[3:13], SYSTEM)
    time.sleep(1)
    assert asked(url, **headers) == (401, "unknown_key")


@pytest.mark.promise("SEC-38")
def test_a_flood_of_made_up_keys_delays_no_evaluation(world: World, monkeypatch):
    monkeypatch.setattr(grants, "FRESH_SECONDS", 60.0)  # the key itself is not looked up meanwhile
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    agent = Agent(world, "openai")
    for _ in range(3):
        agent.turn()
    address = "127.0.0.1", int(world.url.rpartition(":")[2])
    with contextlib.ExitStack() as opened:
        opened.enter_context(transaction.atomic())
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE detection_apikey IN ACCESS EXCLUSIVE MODE")
        for _ in range(450):
            stranger = opened.enter_context(socket.create_connection(address, timeout=20))
            head = (
                f"GET /gateway/openai/models HTTP/1.1\r\nHost: a\r\nLoopGuard-Key: {keys.new_token('lg_')[1]}"
            )
            stranger.sendall(head.encode() + b"\r\n\r\n")
        # The last ones were rejected: all that were sent before them are waiting or have been.
        assert stranger.recv(4096).startswith(b"HTTP/1.1 503 ")
        given = agent.turn()
    assert not given.calls, "the fourth identical call is blocked"


@dataclass
class Running:
    """A request whose answer the model server does not end."""

    url: str
    headers: dict[str, str]
    is_stream: bool = True
    lines: list[str] = field(default_factory=list)
    status: int = 0
    was_cut: bool = False

    def start(self):
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        return self

    def run(self):
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "input": "Hi"}
        client = httpx.Client(headers=self.headers, timeout=20, verify=PLAIN)
        try:
            with client.stream("POST", self.url, json=body | {"stream": self.is_stream}) as answer:
                self.status = answer.status_code
                for line in answer.iter_lines():
                    self.lines.append(line)
        except httpx.RemoteProtocolError:
            self.was_cut = True

    def ended(self):
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self

    @property
    def is_open(self):
        return self.thread.is_alive()

    @property
    def error(self):
        """The error of the last event, or of the document."""
        last = [line for line in self.lines if line][-1]
        return json.loads(last.removeprefix("data: "))["error"]["code"]


def endless(asked: Asked) -> Answer:
    if asked.path.endswith("/files"):
        return Answer(
            [b"beginning\n"], headers={"Content-Type": "text/plain"}, is_chunked=True, ends="silent"
        )
    if not asked.document["stream"]:
        return Answer(ends="mute")
    shape = {"completions": "openai", "messages": "anthropic", "responses": "responses"}
    answer = answered(asked, shape[asked.path.rpartition("/")[2]], "Let me see.")
    answer.parts, answer.ends = answer.parts[: 2 if "chat" in asked.path else 5], "silent"
    return answer


@pytest.mark.promise("SEC-02")
def test_running_requests_end_with_the_right_to_make_them(world: World, monkeypatch):
    """Streams end with an error of their protocol; the others of the project go on."""
    monkeypatch.setattr(traffic, "FLUSH_SECONDS", 0.1)
    world.model.script = endless
    _, token = backends.create_token(world.project.pk, world.backend().public_id, SYSTEM, name="ci")
    headers = {"LoopGuard-Key": world.key, "Authorization": "Bearer sk-client"}
    streams = {
        shape: Running(f"{world.base_url(PATHS[shape][0])}{PATHS[shape][1]}", headers)
        for shape in ("openai", "anthropic", "responses")
    }
    whole = Running(streams["openai"].url, headers, is_stream=False)
    unread = Running(f"{world.base_url()}/files", headers)
    by_token = Running(
        f"{world.base_url(token=token)}/chat/completions", {"Authorization": "Bearer sk-client"}
    )
    by_other = Running(streams["openai"].url, headers | {"LoopGuard-Key": make_key(world.project)})
    everything = [*streams.values(), whole, unread, by_token, by_other]
    for one in everything:
        one.start()
    wait_for(lambda: len(world.model.asked) == len(everything))
    wait_for(lambda: all(one.lines for one in everything if one is not whole))

    keys.revoke_key(world.project, world.key[3:13], SYSTEM)
    for shape, one in streams.items():
        assert (shape, one.ended().error, one.was_cut) == (shape, "unknown_key", False)
    assert "event: error" in streams["anthropic"].lines
    assert "event: error" in streams["responses"].lines
    numbers = [
        json.loads(line[6:])["sequence_number"] for line in streams["responses"].lines if "data: " in line
    ]
    assert numbers == [*range(len(numbers))]
    assert (whole.ended().status, whole.error) == (401, "unknown_key")
    assert unread.ended().was_cut
    assert by_token.is_open
    assert by_other.is_open
    wait_for(lambda: world.model.gone == 5)

    row = GatewayToken.objects.get()
    backends.revoke_token(world.project.pk, world.backend().public_id, row.public_id, SYSTEM)
    assert by_token.ended().error == "unknown_key"
    assert by_other.is_open
    archive_project(world.project.pk, SYSTEM)
    assert by_other.ended().error == "project_archived"

    counted = GatewayTraffic.objects.filter(period=TrafficPeriod.MINUTE)
    wait_for(lambda: sum(counted.values_list("requests", flat=True)) == len(everything))
    assert sum(counted.values_list("abandoned", flat=True)) == 0, "no client has left"


def test_a_disabled_or_deleted_backend_is_not_there(world: World):
    world.change(is_enabled=False)
    assert asked(f"{world.base_url()}/models", **{"LoopGuard-Key": world.key}) == (404, "unknown_backend")
    backends.delete_backend(world.project.pk, world.backend("anthropic").public_id, SYSTEM)
    assert asked(f"{world.base_url('anthropic')}/v1/models", **{"LoopGuard-Key": world.key})[0] == 404


@pytest.mark.parametrize(
    ("name", "path"), [("openai", "/models"), ("anthropic", "/v1/messages/count_tokens")]
)
def test_models_and_token_counts_get_the_credential_of_the_backend(world: World, name, path):
    world.change(name, credential="MAIN", headers={"X-Team": "agents"})
    world.http(name).request("GET" if name == "openai" else "POST", path)
    headers = world.model.asked[0].headers
    assert headers["x-team"] == "agents"
    sent = {header: headers.get(header) for header in ("authorization", "x-api-key")}
    assert sent == {
        "authorization": "Bearer sk-of-the-deployment" if name == "openai" else None,
        "x-api-key": "sk-of-the-deployment" if name == "anthropic" else None,
    }


def test_other_paths_need_the_clients_own_credential(world: World):
    world.change(credential="MAIN")
    url = f"{world.base_url()}/organization/api_keys"
    assert asked(url, **{"LoopGuard-Key": world.key}) == (403, "credential_required")
    httpx.get(url, headers={"LoopGuard-Key": world.key, "Authorization": "Bearer sk-client"})
    assert [one.headers["authorization"] for one in world.model.asked] == ["Bearer sk-client"]


@pytest.mark.promise("SEC-15")
def test_a_key_of_ours_never_reaches_a_provider(world: World):
    world.http(**{"Authorization": f"Bearer {world.key}", "X-Api-Key": world.key}).get("/files")
    assert not {"authorization", "x-api-key"} & world.model.asked[0].headers.keys()


@pytest.mark.promise("SEC-03")
def test_tokens_are_masked_in_every_log_line(world: World):
    _, token = backends.create_token(world.project.pk, world.backend().public_id, SYSTEM, name="ci")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    for is_json in (True, False):
        handler.setFormatter(logs.formatter(is_json))
        record = logging.LogRecord(
            "uvicorn", logging.ERROR, "x", 1, "GET %s %s", (f"/gateway/a/{token}/v1", world.key), None
        )
        handler.emit(record)
    assert token not in stream.getvalue()
    assert world.key not in stream.getvalue()
    assert stream.getvalue().count(token[:14]) == 2
    assert GatewayToken.objects.get().digest not in stream.getvalue()
