"""Requests and responses on their way through the gateway: unchanged, streamed, cut and cancelled as without it."""

import asyncio
import gzip
import socket
import threading
import time
from urllib.parse import urlsplit

import httpcore
import httpx
import pytest

from detection.gateway.relaying import unpacked_parts
from detection.web import unfinished_bodies
from tests.support.model_answers import answered
from tests.support.model_server import Answer, of_events, of_json
from tests.support.patience import PATIENCE_SECONDS
from tests.support.projects import make_key

from .conftest import World, wait_for

HEAD = b'{"model":"m",  "messages":[]}'


def test_a_request_arrives_unchanged_without_our_headers(world: World):
    world.http(**{"Cookie": "loopguard=secret", "X-Forwarded-For": "10.0.0.1", "OpenAI-Project": "p"}).post(
        "/files?purpose=a%2Fb&x=", content=b"\x00\xff raw"
    )
    asked = world.model.asked[0]
    assert (asked.method, asked.path, asked.body) == ("POST", "/v1/files?purpose=a%2Fb&x=", b"\x00\xff raw")
    assert asked.headers["authorization"] == "Bearer sk-client"
    assert asked.headers["openai-project"] == "p"
    assert asked.headers["host"] == f"127.0.0.1:{world.model.port}"
    assert not {"loopguard-key", "cookie", "x-forwarded-for"} & asked.headers.keys()
    assert world.key not in str(asked.headers)


def test_a_chunked_upload_is_streamed(world: World):
    parts = [b"a" * 1000, b"b" * 1000]
    world.http().post("/files", content=iter(parts))
    assert world.model.asked[0].body == b"".join(parts)
    assert world.model.asked[0].headers["transfer-encoding"] == "chunked"


@pytest.mark.parametrize("path", ["chat/completions", "files"])
def test_a_body_that_never_ends_is_given_up(world: World, monkeypatch, path):
    monkeypatch.setattr(unfinished_bodies, "GRACE_SECONDS", 0.5)
    at = urlsplit(world.base_url())
    head = (
        f"POST {at.path}/{path} HTTP/1.1\r\nHost: {at.netloc}\r\nLoopGuard-Key: {world.key}\r\n"
        "Authorization: Bearer sk-client\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((at.hostname or "", at.port or 0), timeout=20) as agent:
        agent.sendall(head.encode() + b"{")
        answer = b"".join(iter(lambda: agent.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_timeout"' in answer


@pytest.mark.parametrize("path", ["chat/completions", "files"])
def test_of_too_many_unfinished_bodies_of_a_key_the_oldest_is_given_up(world: World, monkeypatch, path):
    monkeypatch.setattr(unfinished_bodies, "MAX_UNFINISHED", 2)
    at = urlsplit(world.base_url())
    keys = [world.key, world.key, make_key(world.project), world.key]
    agents = []
    for key in keys:
        agents.append(socket.create_connection((at.hostname or "", at.port or 0), timeout=20))
        head = f"POST {at.path}/{path} HTTP/1.1\r\nHost: {at.netloc}\r\nLoopGuard-Key: {key}\r\n"
        head += "Connection: close\r\n"
        agents[-1].sendall(f"{head}Authorization: Bearer sk-client\r\nContent-Length: 9\r\n\r\n{{".encode())
        time.sleep(0.3)  # each arrives after the one before
    answer = b"".join(iter(lambda: agents[0].recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    for agent in agents[1:]:
        agent.sendall(b'"a": 1 }')
        assert agent.recv(65536).startswith(b"HTTP/1.1 200 ")
        agent.close()


def test_an_encoded_path_stays_encoded_and_cannot_climb(world: World):
    world.http().get("/files/a%2Fb%20c")
    assert world.model.asked[0].path == "/v1/files/a%2Fb%20c"
    with socket.create_connection(("127.0.0.1", int(world.url.rpartition(":")[2]))) as raw:
        raw.sendall(
            b"GET /gateway/openai/%2e%2e/admin HTTP/1.1\r\nHost: x\r\nConnection: close\r\nLoopGuard-Key: "
            + world.key.encode()
            + b"\r\n\r\n"
        )
        answer = raw.makefile("rb").read()
    assert b"invalid_path" in answer
    assert len(world.model.asked) == 1


SHIELD = {"x-content-type-options": "nosniff", "content-security-policy": "sandbox; default-src 'none'"}
HOSTILE = {
    "Set-Cookie": "sessionid=stolen; Path=/",
    "Clear-Site-Data": '"*"',
    "Content-Security-Policy": "default-src *",
    "Content-Security-Policy-Report-Only": "default-src 'none'; report-uri https://evil.example",
    "Location": "https://evil.example/sign-in",
    "Refresh": "0; url=https://evil.example",
    "Link": "</static/x.js>; rel=preload",
    "WWW-Authenticate": 'Basic realm="LoopGuard"',
    "Strict-Transport-Security": "max-age=31536000; includeSubDomains",
    "Alt-Svc": 'h2="evil.example:443"',
    "Access-Control-Allow-Origin": "*",
    "Service-Worker-Allowed": "/",
    "X-Accel-Redirect": "/internal/secret_key",
    "X-Sendfile": "/etc/passwd",
    "Report-To": "{}",
    "NEL": "{}",
    "X-Content-Type-Options": "sniff",
    "Anything-New": "x",
}


@pytest.mark.promise("SEC-39")
@pytest.mark.parametrize("status", [200, 302, 401, 500])
@pytest.mark.parametrize("path", ["/files", "/chat/completions"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_what_a_model_server_sends_does_not_act_on_the_console(world: World, path, is_stream, status):
    def script(asked):
        answer = answered(asked, "openai", "Hi.", [])
        answer.status = status
        answer.headers = {
            **HOSTILE,
            "OpenAI-Version": "1",
            "X-RateLimit-Limit-Requests": "9",
            **answer.headers,
        }
        return answer

    world.model.script = script
    request = {"model": "m", "stream": is_stream, "messages": [{"role": "user", "content": "x"}]}
    answer = world.http().post(path, json=request, follow_redirects=False)
    assert answer.status_code == status
    kept = {"openai-version": "1", "x-ratelimit-limit-requests": "9", **SHIELD}
    assert dict(answer.headers) | kept == dict(answer.headers)
    assert not {name.lower() for name in HOSTILE} & (answer.headers.keys() - SHIELD.keys())


@pytest.mark.promise("SEC-39")
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("text/html; charset=utf-8", "text/plain; charset=utf-8"),
        ("TEXT/HTML", "text/plain"),
        ("text/javascript", "text/plain"),
        ("application/javascript", "application/octet-stream"),
        ("application/xhtml+xml", "application/octet-stream"),
        ("image/svg+xml", "application/octet-stream"),
        ("application/pdf", "application/octet-stream"),
        ("application/json, text/html", "application/octet-stream"),
        ("application/json; a=b, text/html", "application/octet-stream"),
        ("", "application/octet-stream"),
        ("application/json; charset=utf-8", "application/json; charset=utf-8"),
        ("application/vnd.api+json", "application/vnd.api+json"),
        ("audio/mpeg", "audio/mpeg"),
        ("text/event-stream", "text/event-stream"),
    ],
)
def test_no_response_has_a_media_type_that_a_browser_runs(world: World, given, shown):
    world.model.script = lambda asked: Answer([b"<script>alert(1)</script>"], headers={"Content-Type": given})
    answer = world.http().get("/files")
    assert (answer.headers["content-type"], answer.content) == (shown, b"<script>alert(1)</script>")


def test_a_status_that_does_not_exist_is_an_error_of_the_gateway(world: World):
    for status in (600, 999):
        world.model.script = lambda asked, status=status: Answer([b"x"], status)
        answer = world.http().get("/files")
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")


def test_a_response_is_the_same_bytes_with_its_harmless_headers(world: World):
    packed = gzip.compress(b'{"id": "x"}')
    headers = {
        "Content-Type": "application/json",
        "Content-Encoding": "gzip",
        "X-Request-Id": "up-1",
        "Date": "now",
    }
    world.model.script = lambda asked: Answer([packed], 203, headers)
    with world.http().stream("GET", "/files") as answer:
        assert b"".join(answer.iter_raw()) == packed
    assert answer.status_code == 203
    assert dict(answer.headers) == {name.lower(): value for name, value in headers.items()} | {
        "content-length": str(len(packed)),
        **SHIELD,
    }


def test_a_stream_passes_event_by_event(world: World):
    go_on = threading.Event()

    class Parts(list):
        def __iter__(self):
            yield b"data: 1\n\n"
            assert go_on.wait(PATIENCE_SECONDS)
            yield b"data: 2\n\n"

    world.model.script = lambda asked: of_events(Parts())
    with world.http().stream("GET", "/files") as answer:
        parts = answer.iter_raw()
        assert next(parts) == b"data: 1\n\n"
        go_on.set()
        assert next(parts) == b"data: 2\n\n"


def test_connections_to_the_upstream_are_kept(world: World):
    http = world.http()
    for _ in range(3):
        http.get("/files")
    assert len({asked.connection for asked in world.model.asked}) == 1


@pytest.mark.parametrize("status", [400, 401, 408, 429, 500, 529])
def test_errors_of_the_upstream_are_its_own(world: World, status):
    world.model.script = lambda asked: of_json({"error": {"message": "no"}}, status, **{"Retry-After": "7"})
    answer = world.http().post("/files", content=b"x")
    assert (answer.status_code, answer.json()) == (status, {"error": {"message": "no"}})
    assert answer.headers["retry-after"] == "7"


@pytest.mark.parametrize("chunked", [True, False])
def test_a_cut_response_is_cut(world: World, chunked):
    world.model.script = lambda asked: Answer([b"half"], is_chunked=chunked, ends="cut")
    with pytest.raises(httpx.RemoteProtocolError):
        world.http().get("/files")


def test_an_upstream_that_is_away_gives_502(world: World, settings):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        settings.GATEWAY_UPSTREAMS = (*settings.GATEWAY_UPSTREAMS, url)
        world.change(base_url=url)
        answer = world.http().get("/files")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")


def test_a_client_that_leaves_ends_the_request_upstream(world: World):
    world.model.script = lambda asked: of_events([b"data: 1\n\n"], ends="silent")
    with world.http().stream("GET", "/files") as answer:
        next(answer.iter_raw())
    wait_for(lambda: world.model.gone == 1)


def test_a_client_that_leaves_before_the_response_ends_the_request_upstream(world: World):
    world.model.script = lambda asked: Answer(ends="silent", is_chunked=True)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{world.base_url()}/files", content=b"x", headers={"LoopGuard-Key": world.key}, timeout=0.5
        )
    wait_for(lambda: world.model.gone == 1)


def test_a_client_that_does_not_read_holds_the_upstream_back(world: World):
    megabyte = b"x" * 2**20
    world.model.script = lambda asked: of_events([megabyte] * 64)
    with world.http().stream("GET", "/files") as answer:
        parts = answer.iter_raw()
        next(parts)
        time.sleep(1)
        assert world.model.sent < 32 * 2**20  # what fits into sockets and one buffer
        assert sum(len(part) for part in parts) > 60 * 2**20


@pytest.mark.promise("SEC-15")
def test_an_address_that_the_deployment_no_longer_allows_is_not_used(world: World, settings):
    settings.GATEWAY_UPSTREAMS = ("https://api.openai.com",)
    answer = world.http().get("/files")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_not_allowed")
    settings.GATEWAY_UPSTREAMS = (world.model.url,)
    settings.ALERT_ALLOWED_NETWORKS = ()
    answer = world.http().get("/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
    assert "127.0.0.1" in answer.text
    assert not world.model.asked


def test_a_compressed_answer_is_unpacked_in_steps_between_which_others_have_their_turn():
    packed = gzip.compress(bytes(40_000_000))
    turns = 0

    async def one_part():
        yield packed

    async def others():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def sizes():
        response = httpcore.Response(200, headers=[(b"Content-Encoding", b"gzip")], content=one_part())
        waiting = asyncio.create_task(others())
        try:
            return [len(part) async for part in unpacked_parts(response)]
        finally:
            waiting.cancel()

    found = asyncio.run(sizes())
    assert sum(found) == 40_000_000
    assert max(found) <= 64 * 1024
    assert turns >= len(found) - 1
