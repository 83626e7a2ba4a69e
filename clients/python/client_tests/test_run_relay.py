"""The address that model requests pass through: byte by byte, and past LoopGuard only where that is wanted."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from loopguard_client.runs import relay as relays
from loopguard_client.runs.relay import Relay, Route

SECONDS = 30
HEADERS = {"LoopGuard-Key": "lg_key", "LoopGuard-Tags": "run-1"}


class RawServer:
    """Keeps what it gets, byte by byte, and answers with the bytes that it is told."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") -> None:
        self.answer, self.gone = answer, threading.Event()
        self.got: list[tuple[bytes, bytes]] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/base"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection):
        connection.settimeout(SECONDS)
        with connection, connection.makefile("rb") as file:
            head = []
            while (line := file.readline()) not in (b"\r\n", b""):
                head.append(line)
            about = b"".join(head).lower()
            body = b""
            if b"transfer-encoding: chunked" in about:
                while size := int(file.readline(), 16):
                    body += file.read(size)
                    file.readline()
                file.readline()
            elif b"content-length: " in about:
                body = file.read(int(about.partition(b"content-length: ")[2].split(b"\r\n")[0]))
            self.got.append((b"".join(head), body))
            if self.answer:
                connection.sendall(self.answer)
            elif not connection.recv(1):
                self.gone.set()

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def raw():
    """Start servers; they end with the test."""
    with contextlib.ExitStack() as closing:

        def start(*arguments):
            server = RawServer(*arguments)
            closing.callback(server.close)
            return server

        yield start


@pytest.fixture
def relayed():
    """Start a relay for one route; returns it with what it has told."""
    with contextlib.ExitStack() as closing:

        def start(route, **options):
            told: list[str] = []
            relay = Relay({"openai": route}, HEADERS, tell=told.append, **options)
            closing.callback(relay.close)
            return relay, told

        yield start


def ask(relay, path="/chat", method="POST", body=b"{}", headers=None, *, secret=""):
    parts = urlsplit(relay.url("openai"))
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
    with contextlib.closing(connection):
        target = parts.path.replace(relay.secret, secret or relay.secret) + path
        connection.request(method, target, body, headers or {}, encode_chunked=not isinstance(body, bytes))
        response = connection.getresponse()
        return response.status, response.read()


def away():
    """Return an address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}/gateway/openai"


def test_a_request_passes_unchanged_with_the_key_and_the_tags(raw, relayed):
    server = raw()
    relay, told = relayed(Route(server.url))
    body = bytes(range(256)) * 20_000
    given = {"Authorization": "Bearer sk", "loopguard-tags": "mine", "X-Of-Mine": "a, b"}
    assert ask(relay, "/v1/x?a=%2F&b", body=body, headers=given) == (200, b"ok")
    ((head, got),) = server.got
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /base/v1/x?a=%2F&b HTTP/1.1"
    assert {"Authorization: Bearer sk", "X-Of-Mine: a, b", "LoopGuard-Key: lg_key"} <= set(lines)
    assert [line for line in lines if line.lower().startswith("loopguard-tags")] == ["LoopGuard-Tags: run-1"]
    assert got == body
    assert told == []


def test_a_body_in_chunks_passes(raw, relayed):
    server = raw()
    relay, _ = relayed(Route(server.url))
    assert ask(relay, body=iter([b"a" * 100_000, b"b"])) == (200, b"ok")
    assert server.got[0][1] == b"a" * 100_000 + b"b"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 429 Slow\r\nContent-Length: 3\r\nRetry-After: 7\r\n\r\nabc",
        b"HTTP/1.1 429 Slow\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
        b"HTTP/1.1 429 Slow\r\nConnection: close\r\n\r\nabc",
    ],
)
def test_an_answer_passes_however_it_is_sent(raw, relayed, answer):
    relay, _ = relayed(Route(raw(answer).url))
    assert ask(relay) == (429, b"abc")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
def test_an_answer_that_is_cut_arrives_cut(raw, relayed, answer):
    relay, _ = relayed(Route(raw(answer).url))
    with pytest.raises(http.client.IncompleteRead):
        ask(relay)


def test_a_version_is_added_for_programs_that_expect_it_in_the_address(raw, relayed):
    server = raw()
    relay, _ = relayed(Route(server.url, version="/v1"))
    for path in ("/messages", "/v1/messages"):
        ask(relay, path)
    assert [head.split()[1] for head, _ in server.got] == [b"/base/v1/messages"] * 2


def test_a_program_that_gives_up_ends_the_request(raw, relayed):
    server = raw(b"")
    relay, _ = relayed(Route(server.url))
    parts = urlsplit(relay.url("openai"))
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
    connection.request("POST", parts.path + "/chat", b"{}")
    deadline = time.monotonic() + SECONDS
    while not server.got:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    connection.close()
    assert server.gone.wait(SECONDS)


def test_only_the_program_knows_the_address(raw, relayed):
    server = raw()
    relay, _ = relayed(Route(server.url))
    assert ask(relay, secret="0" * 22)[0] == 404
    assert server.got == []


def test_without_loopguard_requests_go_to_the_model_server_without_its_key(raw, relayed, monkeypatch):
    monkeypatch.setattr(relays, "PAUSE_SECONDS", 0.0)
    server = raw()
    relay, told = relayed(Route(away(), server.url))
    assert [ask(relay) for _ in range(3)] == [(200, b"ok")] * 3
    assert not any(b"loopguard" in head.lower() for head, _ in server.got)
    assert told == [
        f"LoopGuard cannot be reached: model requests go to {server.url}, unguarded until it answers."
    ]
    assert (relay.past, relay.refused) == (3, 0)
    relay.routes["openai"] = Route(server.url)
    assert ask(relay) == (200, b"ok")
    assert told[1:] == ["LoopGuard answers again: model requests are guarded."]
    assert relay.past == 3


def test_a_relay_that_fails_closed_refuses_instead(raw, relayed):
    server = raw()
    relay, told = relayed(Route(away(), server.url), fail_closed=True)
    status, body = ask(relay)
    assert (status, b"fails closed" in body) == (503, True)
    assert server.got == []
    assert told == ["LoopGuard cannot be reached: model requests are refused until it answers."]
    assert (relay.past, relay.refused) == (0, 1)


def test_a_model_server_that_is_away_is_an_error_and_not_a_silence(relayed):
    relay, _ = relayed(Route(away(), away()))
    assert ask(relay)[0] == 502
