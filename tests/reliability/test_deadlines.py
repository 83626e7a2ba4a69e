"""What clients get from `web` while the database hangs, a session is locked, or bodies never end."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from django.conf import settings
from django.db import connection

from detection.models import Session
from detection.services.retention.removal import delete_sessions
from tests.support.projects import make_key, make_project

from .frozen_database import FreezableDatabase
from .installation import Installation, wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.servers]
MORE_THAN_THREADS = 16
BUDGET = {"LoopGuard-Timeout-Ms": "300"}


class Web:
    """A running `web` and the way to its database."""

    def __init__(self, url: str, token: str, database: FreezableDatabase) -> None:
        self.database = database
        self.client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=20)

    def guard(self, session: str = "s-1", **headers: str) -> httpx.Response:
        calls = [{"tool": "search_web", "arguments": {"q": "x"}}]
        return self.client.post("/api/v1/guard", json={"session": session, "calls": calls}, headers=headers)

    def missed(self, reason: str = "") -> float:
        lines = self.client.get("/metrics", headers={"Authorization": ""}).text.splitlines()
        start = f'loopguard_guard_missed_total{{reason="{reason}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


@pytest.fixture(scope="module")
def web(django_db_setup, django_db_blocker, tmp_path_factory) -> Iterator[Web]:
    with django_db_blocker.unblock():
        project, database = make_project("deadlines"), FreezableDatabase()
        folder = tmp_path_factory.mktemp("web")
        # Not as a test, so that it has a pool of connections.
        mode = {"LOOPGUARD_MODE": "embedded", "LOOPGUARD_SECRET_KEY": settings.SECRET_KEY}
        installation = Installation(os.environ["REDIS_URL"], folder, DATABASE_URL=database.url, **mode)
        try:
            installation.start_web()
            yield Web(installation.url, make_key(project), database)
        finally:
            installation.stop()
            database.close()
            delete_sessions(
                project.pk, [*Session.objects.filter(project=project).values_list("pk", flat=True)]
            )
            project.delete()
            connection.close()


@pytest.mark.promise("REL-09")
def test_a_frozen_database_delays_the_guard_no_longer_than_its_deadline(web):
    assert web.guard().status_code == 200
    missed = web.missed()
    with ThreadPoolExecutor(MORE_THAN_THREADS) as agents:
        with web.database.frozen():
            answers = [
                agents.submit(web.guard, f"s-{number}", **BUDGET) for number in range(MORE_THAN_THREADS)
            ]
            documents = [answer.result() for answer in answers]
            assert web.client.get("/healthz").status_code == 200
            assert web.client.get("/readyz").status_code == 503
        assert {answer.status_code for answer in documents} == {503}
        assert {answer.json()["code"] for answer in documents} == {"unavailable"}
        assert all(int(answer.headers["Retry-After"]) > 0 for answer in documents)
    assert wait_until(lambda: web.guard().status_code == 200)
    assert web.missed() - missed >= MORE_THAN_THREADS


@pytest.mark.promise("REL-38")
@pytest.mark.parametrize("milliseconds", ["1", "2", "5", "9"])
def test_a_database_that_had_no_time_to_respond_is_not_said_to_be_unavailable(web, milliseconds):
    blamed, missed, count = web.missed("database"), web.missed(), 60
    with ThreadPoolExecutor(MORE_THAN_THREADS) as agents:
        budget = {"LoopGuard-Timeout-Ms": milliseconds}
        sent = [agents.submit(web.guard, f"hurried-{number}", **budget) for number in range(count)]
        answers = [one.result() for one in sent]
    rejected = [one.json() for one in answers if one.status_code != 200]
    assert {one["code"] for one in rejected} <= {"unavailable"}
    assert {one["detail"] for one in rejected} <= {"The request was not answered within its deadline."}
    assert wait_until(lambda: web.missed() - missed >= len(rejected))
    assert web.missed("database") == blamed
    assert web.guard().status_code == 200


@pytest.mark.promise("REL-09")
def test_a_locked_session_delays_nobody_else(web):
    assert web.guard("locked").status_code == 200
    with (
        ThreadPoolExecutor(MORE_THAN_THREADS) as agents,
        psycopg.connect(**connection.get_connection_params()) as other,
    ):
        other.execute("SELECT FROM detection_session WHERE external_id = 'locked' FOR UPDATE")
        answers = [agents.submit(web.guard, "locked") for _ in range(MORE_THAN_THREADS)]
        assert [web.guard("free").status_code for _ in range(5)] == [200] * 5
        assert {answer.result().status_code for answer in answers} == {503}
    assert wait_until(lambda: web.guard("locked").status_code == 200)


def test_idle_connections_that_the_server_has_ended_cost_no_request(web):
    with ThreadPoolExecutor(MORE_THAN_THREADS) as agents:
        everyone = [agents.submit(web.guard, f"pool-{number}") for number in range(MORE_THAN_THREADS)]
        assert {answer.result().status_code for answer in everyone} == {200}
    connection.cursor().execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle'"
    )
    assert [web.guard("pool").status_code for _ in range(MORE_THAN_THREADS)] == [200] * MORE_THAN_THREADS


LINE = (
    json.dumps({"type": "call", "session": "cut", "tool": "search_web", "arguments": {"q": "x"}}).encode()
    + b"\n"
)
CUTS = {
    "without an end": lambda body: b"%x\r\n%s\r\n" % (len(body), body),
    "without the last line break": lambda body: b"%x\r\n%s\r\n0\r\n" % (len(body), body),
    "within a chunk": lambda body: b"%x\r\n%s" % (len(body) + 1, body),
    "without a chunk": lambda body: b"",
    "a size that is none": lambda body: b"%x\r\n%s\r\nzz\r\n" % (len(body), body),
    "a chunk that is longer": lambda body: b"%x\r\n%s" % (len(body) - 1, body),
    "a size without an end": lambda body: b"%x\r\n%s\r\n%s" % (len(body), body, b"0" * 300),
    "shorter than its length": None,
}


def unfinished_answer(web, path, kind, body, cut, **headers):
    """Send a body that is cut in a way, and then nothing more; the response."""
    at = urlsplit(str(web.client.base_url))
    length = {"Content-Length": str(len(body) + 1)} if cut is None else {"Transfer-Encoding": "chunked"}
    given = {
        "Host": at.netloc,
        "Authorization": web.client.headers["Authorization"],
        "Content-Type": kind,
        **length,
        **headers,
    }
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items())
    with socket.create_connection((at.hostname or "", at.port or 0), timeout=20) as sender:
        sender.sendall(head.encode() + b"\r\n" + (cut(body) if cut else body))
        sender.shutdown(socket.SHUT_WR)
        answer = HTTPResponse(sender)
        answer.begin()
        return answer.status, answer.getheader("Content-Type"), answer.read()


@pytest.mark.promise("REL-36")
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("size", [1, 3000], ids=["short", "long"])
def test_a_body_that_is_cut_or_broken_is_rejected_whole(web, cut, size):
    ndjson, body = "application/x-ndjson", LINE * size
    status, kind, content = unfinished_answer(web, "/api/v1/events", ndjson, body, cut)
    problem = json.loads(content)
    assert (status, kind, problem["code"]) == (400, "application/problem+json", "incomplete_body")
    assert "Nothing of it was stored" in problem["detail"]
    packed = gzip.compress(body)
    answers = [
        unfinished_answer(web, "/api/v1/events", ndjson, packed, cut, **{"Content-Encoding": "gzip"})[0],
        unfinished_answer(web, "/api/v1/guard", "application/json", b'{"session": "cut"}' * size, cut)[0],
        unfinished_answer(web, "/api/v1/hooks/codex", "application/json", b'{"a": "b"}' * size, cut)[0],
        unfinished_answer(web, "/api/v1/otlp/v1/traces", "application/x-protobuf", body, cut)[0],
        unfinished_answer(web, "/api/v1/imports", "application/x-ndjson", body, cut)[0],
    ]
    assert answers == [400] * 5
    assert not Session.objects.filter(external_id="cut").exists()


def test_whole_chunked_bodies_are_stored_with_any_chunks(web):
    for number, sizes in enumerate(((10**9,), (1,), (7, 1000), (65_536,), (100_000, 1))):
        line = LINE.replace(b"cut", b"whole-%d" % number)
        body = line * (30 if 1 in sizes else 900)

        def chunks(body=body, sizes=sizes):
            at = 0
            for size in itertools.cycle(sizes):
                if at >= len(body):
                    return
                yield body[at : at + size]
                at += size

        headers = {"Content-Type": "application/x-ndjson"}
        answer = web.client.post("/api/v1/events", content=chunks(), headers=headers)
        assert (answer.status_code, answer.json()["accepted"]) == (202, body.count(b"\n"))


def test_bodies_that_never_end_keep_no_thread(web):
    at = urlsplit(str(web.client.base_url))
    head = "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Length: 100000\r\n{}\r\n"
    token = f"Authorization: {web.client.headers['Authorization']}\r\nContent-Type: application/json\r\n"
    unfinished = []
    for number in range(3 * MORE_THAN_THREADS):
        path, headers = (("/sign-in", ""), ("/api/v1/guard", token), ("/api/v1/events", token))[number % 3]
        unfinished.append(socket.create_connection((at.hostname or "", at.port or 0)))
        unfinished[-1].sendall(head.format(path, at.netloc, headers).encode() + b"name=a")
    assert web.client.get("/healthz").status_code == 200
    assert web.client.get("/api/v1/sessions").status_code == 200
    assert web.guard("free").status_code == 200
    unfinished[0].settimeout(20)
    answer = b"".join(iter(lambda: unfinished[0].recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"body_timeout"' in answer
    for one in unfinished:
        one.close()
