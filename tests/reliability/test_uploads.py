"""Large uploads through the front of web, to a worker that may die on the way."""

import contextlib
import os
import re
import shutil
import socket
from pathlib import Path

import httpx
import pytest
from django.test import Client

from detection.models import Event, Role, Session, TranscriptImport
from detection.services.ingestion.import_files import ARRIVING_PREFIX, MAX_UPLOAD_BYTES
from tests.support.projects import make_member
from tests.support.transcripts import claude_code, lines

from .installation import Installation, wait_until

MB = 1024**2


@pytest.fixture(scope="module")
def web(django_db_setup, tmp_path_factory):
    """A `web`, which waits for all tests, and the folder of its uploads."""
    folder = tmp_path_factory.mktemp("web")
    imports = folder / "imports"
    made = Installation(os.environ["REDIS_URL"], folder, LOOPGUARD_IMPORT_FOLDER=str(imports))
    try:
        made.start_web()
        yield made, imports
    finally:
        made.stop()


@pytest.fixture
def imports(web):
    """The folder of uploads, without those of other tests."""
    shutil.rmtree(web[1], ignore_errors=True)
    return web[1]


@pytest.fixture
def installation(project, web, imports):
    yield web[0]
    web[0].stop(but=1)


class Browser(httpx.Client):
    """`token` is that of its form."""

    token = "x"


@pytest.fixture
def person(project, settings, installation):
    """A browser's client of an operator, with the token of the form."""
    signed_in = Client()
    signed_in.force_login(make_member(project, Role.OPERATOR))
    cookies = {settings.SESSION_COOKIE_NAME: signed_in.cookies[settings.SESSION_COOKIE_NAME].value}
    with Browser(base_url=installation.url, cookies=cookies, timeout=60) as client:
        page = client.get(url(project))
        client.token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)[1]
        yield client


def url(project):
    return f"/p/{project.slug}/connect/imports"


def large(size):
    """A transcript of about this size: few calls, and long texts between them."""
    calls = list(claude_code(["make test"] * 12))
    padding = {"type": "progress", "text": "x" * (MB - 100)}
    return lines([*calls[:10], *[padding] * (size // MB), *calls[10:]])


def post(client, project, content, **form):
    files = {"files": ("run.jsonl", content)}
    form = {"csrfmiddlewaretoken": client.token, "kind": "claude-code"} | form
    return client.post(url(project), data=form, files=files)


def memory_of(web):
    """Return the largest resident size of the server's processes so far, in bytes."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = status.read_text()
            if os.getpgid(int(status.parent.name)) == web:
                found.append(int(re.search(r"VmHWM:\s+(\d+)", text)[1]) * 1024)
    return max(found)


def test_an_upload_larger_than_any_other_body_is_imported_without_being_in_memory(
    installation, person, project, imports
):
    web = installation._running[0].pid
    before = memory_of(web)
    answer = post(person, project, large(60 * MB))
    assert answer.status_code == 302, answer.text
    assert memory_of(web) - before < 30 * MB
    assert [path.name[:4] for path in imports.iterdir()] == ["imp_"]
    installation.start_worker()
    row = TranscriptImport.objects.get()
    assert wait_until(lambda: TranscriptImport.objects.get(pk=row.pk).state == "finished"), (
        installation.logs()
    )
    row.refresh_from_db()
    assert row.summary["calls"] == 12
    assert wait_until(lambda: not list(imports.iterdir()))


def test_a_worker_that_is_killed_is_replaced_and_nothing_counts_twice(installation, person, project):
    content = lines(claude_code([f"cat {n % 90}" for n in range(1500)]))
    assert post(person, project, content).status_code == 302
    for _ in range(2):
        before = Event.objects.count()
        worker = installation.start_worker()
        assert wait_until(Event.objects.all()[before:].exists), installation.logs()
        installation.kill(worker)
    installation.start_worker()
    assert wait_until(lambda: TranscriptImport.objects.get().state == "finished", 90), installation.logs()
    row = TranscriptImport.objects.get()
    assert row.starts == 3
    assert Session.objects.get().call_count == 1500
    assert Event.objects.filter(type="call").count() == 1500


def test_a_body_that_may_not_be_uploaded_is_not_kept(installation, person, project, token, imports):
    content = large(4 * MB)
    with Browser(base_url=installation.url, timeout=30) as stranger:
        answer = post(stranger, project, content)
        assert (answer.status_code, answer.headers["location"][:8]) == (302, "/sign-in")
    assert post(person, project, content, csrfmiddlewaretoken="x").status_code == 403
    for key, status in ((None, 401), ("lg_unknown", 401)):
        headers = {"Content-Type": "application/x-ndjson"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        # The server responds before it has read everything, and closes the connection.
        with contextlib.suppress(httpx.WriteError, httpx.ReadError):
            answer = httpx.post(f"{installation.url}/api/v1/imports", content=content, headers=headers)
            assert answer.status_code == status
    other = httpx.post(
        f"{installation.url}/p/{project.slug}/session/change",
        content=content,
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )
    assert other.status_code in (302, 400, 403)
    assert TranscriptImport.objects.count() == 0
    assert not imports.exists() or list(imports.iterdir()) == []


def test_a_key_uploads_a_large_file(installation, project, token):
    answer = httpx.post(
        f"{installation.url}/api/v1/imports",
        params={"name": "run.jsonl"},
        content=large(5 * MB),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"},
        timeout=30,
    )
    assert answer.status_code == 202, answer.text
    assert answer.json()["total_bytes"] > 5 * MB


def test_an_upload_above_the_limit_is_explained(installation, person, project):
    """The page with the reason comes although the body never does."""
    host, port = installation.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        cookie = "; ".join(f"{name}={value}" for name, value in person.cookies.items())
        head = (
            f"POST {url(project)} HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\n"
            f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {MAX_UPLOAD_BYTES * 2}\r\n\r\n"
        )
        line.sendall(head.encode() + b"x" * 1000)
        said = b""
        while piece := line.recv(65536):
            said += piece
    assert said.startswith(b"HTTP/1.1 413")
    assert b"An upload can be at most 512 MB" in said


def test_an_upload_that_stops_arriving_is_given_up_and_leaves_nothing(installation, person, project, imports):
    host, port = installation.url.removeprefix("http://").split(":")
    cookie = "; ".join(f"{name}={value}" for name, value in person.cookies.items())
    with socket.create_connection((host, int(port)), timeout=60) as line:
        head = (
            f"POST {url(project)} HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\n"
            f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {50 * MB}\r\n\r\n"
        )
        line.sendall(head.encode() + b"x" * 1000)
        assert line.recv(65536).startswith(b"HTTP/1.1 408")
    assert not list(imports.glob(f"{ARRIVING_PREFIX}*"))
