"""What a client without a right can take up of `web` and `live`: processes as they are started, real connections."""

import contextlib
import os
import socket
import subprocess
import sys
import time

import httpx
import pytest
import websockets.sync.client
from django.conf import settings
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from loopguard_site.live import connections
from tests.consumers.conftest import sign_in
from tests.support.asgi_server import serving
from tests.support.plain_http import PLAIN
from tests.support.projects import make_member

from .installation import Installation

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SECONDS = 30.0


@pytest.fixture(scope="module")
def live(django_db_setup, tmp_path_factory):
    """Host and port of `live`, as `up` starts it."""
    installation = Installation(os.environ["REDIS_URL"], tmp_path_factory.mktemp("live"))
    try:
        installation.start_live()
        yield "127.0.0.1", int(installation.live_url.rpartition(":")[2])
    finally:
        installation.stop()


def open_socket(live, path="/ws/p/support/", cookie=None, **headers):
    host, port = live
    if cookie:
        headers["Cookie"] = cookie
    return websockets.sync.client.connect(
        f"ws://{host}:{port}{path}",
        origin=Origin(settings.PUBLIC_URL),
        additional_headers=headers,
        compression=None,
        open_timeout=SECONDS,
        max_size=None,
    )


def rejection(live, *arguments, **options):
    with pytest.raises(InvalidStatus) as caught, open_socket(live, *arguments, **options):
        pass
    return caught.value.response.status_code


@pytest.mark.promise("SEC-07")
def test_a_handshake_without_a_right_is_rejected_before_it_is_accepted(live, project):
    stranger = sign_in(
        make_member(project.__class__.objects.create(slug="other", name="Other"), username="eve")
    )
    forged = f"{settings.SESSION_COOKIE_NAME}={'a' * 32}"
    assert rejection(live) == 401
    assert rejection(live, cookie=forged) == 401
    assert rejection(live, cookie=stranger.cookie) == 403
    assert rejection(live, "/ws/p/unknown/", cookie=stranger.cookie) == 403
    assert rejection(live, "/ws/elsewhere/", cookie=forged) == 403


@pytest.mark.promise("SEC-07")
@pytest.mark.parametrize(
    "frames",
    [["x" * 4097], ["x" * 4096, "x"], [b"\0" * 4097]],
    ids=["text", "fragments", "bytes"],
)
def test_a_message_above_4_kib_ends_the_socket(live, project, frames):
    with open_socket(live, cookie=sign_in(make_member(project, username="ana")).cookie) as page:
        page.recv(timeout=SECONDS)
        page.send(frames if len(frames) > 1 else frames[0])
        with contextlib.suppress(ConnectionClosed):
            list(page)
        assert page.close_code == 1009


def exchange(live, data):
    """Send bytes and return what comes until the server closes or all requests are answered."""
    with socket.create_connection(live, timeout=SECONDS) as client:
        client.sendall(data)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                got += part
        return got


CLOSE = b"Connection: close\r\n\r\n"


HOSTLESS = [
    b"GET /healthz HTTP/1.1\r\n",
    b"GET /readyz HTTP/1.0\r\n",
    b"GET /api/v1/sessions HTTP/1.1\r\nHost:\r\n",
    b"GET /sign-in HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n",
    b"GET /sign-in HTTP/1.1\r\nHost: localhost:0\r\n",
    b"GET /sign-in HTTP/1.1\r\nHost: localhost:65536\r\n",
    b"GET /sign-in HTTP/1.1\r\nHost: a b\r\n",
    b"GET /sign-in HTTP/1.1\r\nHost: user@localhost\r\n",
]


HANDSHAKE = (
    b"GET /ws/p/support/ HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nOrigin: http://127.0.0.1:8300\r\n"
)


@pytest.mark.promise("SEC-37")
def test_web_answers_400_to_a_request_without_a_single_host(install):
    installation = install(worker=False)
    web = "127.0.0.1", int(installation.url.rpartition(":")[2])
    for head in HOSTLESS:
        assert exchange(web, head + CLOSE).split(b" ")[1] == b"400", head
    for host in (b"localhost", b"127.0.0.1:8300", b"[::1]:8300", b"LOCALHOST"):
        got = exchange(web, b"GET /sign-in HTTP/1.1\r\nHost: " + host + b"\r\n" + CLOSE)
        assert got.startswith(b"HTTP/1.1 200 "), (host, got)


@pytest.mark.promise("SEC-37")
@pytest.mark.parametrize(
    "head",
    [
        *HOSTLESS,
        b"POST /gateway/openai/v1/messages HTTP/1.1\r\nContent-Length: 0\r\n",
        HANDSHAKE,
    ],
)
def test_a_request_without_a_single_host_gets_400(live, head):
    assert exchange(live, head + CLOSE).startswith(b"HTTP/1.1 400 ")
    with_host = b"GET /healthz HTTP/1.1\r\nHost: anything\r\n" + CLOSE
    assert exchange(live, with_host).startswith(b"HTTP/1.1 200 ")


@pytest.mark.promise("SEC-36")
@pytest.mark.parametrize(
    "start",
    [
        b"GET /" + b"a" * 40_000,
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 40_000,
        b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 9_000,
    ],
    ids=["path", "value", "many"],
)
def test_a_head_above_32_kib_gets_431(live, start):
    assert exchange(live, start).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "more",
    [b"Cookie: " + b"a" * 9_000, b"\r\n".join(b"X-%d: a" % number for number in range(200))],
    ids=["value", "many"],
)
def test_a_handshake_with_a_head_that_is_too_large_for_a_socket_gets_431(live, more):
    head = HANDSHAKE + b"Connection: Upgrade\r\nHost: localhost\r\n"
    assert exchange(live, head + b"\r\n").startswith(b"HTTP/1.1 401 ")
    assert exchange(live, head + more + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")


def test_more_requests_than_may_wait_on_one_connection_get_400(live):
    """All in one segment: the server reads them before the first one is answered."""
    assert b"HTTP/1.1 400 " in exchange(live, GET * 50)
    with socket.create_connection(live, timeout=SECONDS) as client:
        client.sendall(GET * 5)
        got = b""
        while got.count(b'{"status":"ok"}') < 5:
            got += client.recv(65536)


def test_the_process_may_open_as_many_files_as_its_hard_limit_allows(tmp_path):
    code = (
        "import resource; from loopguard_site.live.server import raise_file_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, 2048))\n"
        "print(raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "2048 (2048, 2048)"


def unfinished(address):
    client = socket.create_connection(address, timeout=SECONDS)
    client.sendall(GET[:-2])
    return client


def is_closed(client):
    try:
        return client.recv(65536) == b""
    except ConnectionResetError:
        return True


def is_reset_by_a_byte(client):
    try:
        client.sendall(b"a")
        with contextlib.suppress(TimeoutError):
            client.recv(1)
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


def finishes(client):
    client.sendall(GET[-2:])
    return client.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.promise("SEC-36")
def test_unfinished_requests_beyond_what_the_process_may_open_cost_nobody_else_a_response(install):
    installation = install(web=False, worker=False)
    installation.start_live(max_files=400)
    address = "127.0.0.1", int(installation.live_url.rpartition(":")[2])
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(unfinished(address)) for _ in range(600)]
        assert httpx.get(f"{installation.live_url}/readyz", timeout=SECONDS, verify=PLAIN).status_code == 200
        assert all(map(is_closed, clients[:400]))
        assert all(map(finishes, clients[-50:]))


@pytest.mark.promise("SEC-36")
def test_the_oldest_of_too_many_unfinished_requests_is_closed_first():
    with serving(application, most_waiting=3) as url, contextlib.ExitStack() as opened:
        address = "127.0.0.1", int(url.rpartition(":")[2])
        clients = [opened.enter_context(unfinished(address)) for _ in range(5)]
        assert [is_closed(client) for client in clients[:2]] == [True, True]
        assert [finishes(client) for client in clients[2:]] == [True, True, True]


@pytest.mark.promise("SEC-36")
@pytest.mark.parametrize(
    "start",
    [b"", b"G", GET[:-1], GET, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n"],
    ids=["nothing", "a byte", "a head", "a request", "a body that nobody reads"],
)
def test_a_connection_that_keeps_the_server_waiting_is_closed(start, monkeypatch):
    monkeypatch.setattr(connections, "CLIENT_SECONDS", 0.5)
    monkeypatch.setattr(connections, "BODY_REST_SECONDS", 0.5)
    with serving(application) as url:
        client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=SECONDS)
        with client:
            client.sendall(start)
            while not is_closed(client):
                pass


def test_a_connection_that_trickles_is_closed(monkeypatch):
    monkeypatch.setattr(connections, "CLIENT_SECONDS", 0.5)
    with serving(application) as url:
        client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=0.05)
        with client:
            client.sendall(b"GET / HTTP/1.1\r\nX: ")
            assert any(is_reset_by_a_byte(client) for _ in range(200))


@pytest.mark.promise("SEC-36")
@pytest.mark.parametrize(("path", "is_whole"), [("/big", False), ("/granted", True)])
def test_only_a_client_with_a_right_may_take_its_time_to_read(path, is_whole, monkeypatch):
    monkeypatch.setattr(connections, "CLIENT_SECONDS", 0.5)
    with serving(application) as url:
        client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=SECONDS)
        with client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            time.sleep(1.5)
            size = 0
            with contextlib.suppress(ConnectionResetError):
                while part := client.recv(1_000_000):
                    size += len(part)
    assert (size > BIG) is is_whole


BIG = 30_000_000


async def application(scope, receive, send):
    """Responds at once; to `/big`, more than any buffer takes; to `/granted`, the same to somebody with a right."""
    if scope["path"] == "/granted":
        scope["state"]["is_granted"] = True
    body = b"x" * (1 if scope["path"] == "/" else BIG)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body[:1], "more_body": True})
    await send({"type": "http.response.body", "body": body[1:], "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
