"""A client that goes through the real WSGI application, and two projects with keys."""

from __future__ import annotations

import contextlib
import io
import itertools
from typing import Any
from urllib.parse import unquote_to_bytes

import httpx
import pytest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections

from detection.api.rate_limits import rate_limiter
from detection.services.ingestion.attempts import recorder
from detection.services.keys import principal_cache
from loopguard_site.wsgi import application
from tests.support.projects import make_key, make_project


@pytest.fixture
def project(db):
    return make_project("support")


@pytest.fixture
def key(project):
    return make_key(project)


@pytest.fixture
def other_project(db):
    return make_project("rivals")


@pytest.fixture(autouse=True)
def _nothing_left_over():
    # Tests elsewhere leave attempts of projects that are gone, and requests of their keys.
    recorder.clear()
    rate_limiter.clear()
    yield
    recorder.clear()
    principal_cache.clear()
    rate_limiter.clear()


class Body(io.RawIOBase):
    """A request's body as the server hands it over: read piece by piece, never all at once."""

    def __init__(self, pieces):
        self.pieces, self.left, self.taken = iter(pieces), b"", 0

    def readable(self):
        return True

    def read(self, size=-1):
        while size < 0 or len(self.left) < size:
            piece = next(self.pieces, None)
            if piece is None:
                break
            self.left += piece
        size = len(self.left) if size < 0 else size
        taken, self.left = self.left[:size], self.left[size:]
        self.taken += len(taken)
        return taken


def _keep_the_connection():
    """The test's transaction lives on the connection that the end of a request would give back.

    Asked for at every request, as Django's own client gives it back after each of its requests.
    """
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)


class WsgiDoor(httpx.BaseTransport):
    """Calls the application with the environ that the server makes: bytes as Latin-1, and bodies without a length too."""

    remote_addr = "192.0.2.7"

    def handle_request(self, request):
        _keep_the_connection()
        raw_path, _, query = request.url.raw_path.partition(b"?")
        self.body = Body(request.stream)
        environ = {
            "REQUEST_METHOD": request.method, "SCRIPT_NAME": "", "PATH_INFO": unquote_to_bytes(raw_path).decode("latin-1"),
            "QUERY_STRING": query.decode("ascii"), "SERVER_NAME": request.url.host, "SERVER_PORT": str(request.url.port or 80),
            "SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": self.remote_addr, "wsgi.url_scheme": "http", "wsgi.input": self.body,
            "wsgi.input_terminated": True, "wsgi.errors": io.StringIO(), "wsgi.version": (1, 0), "wsgi.multithread": True,
            "wsgi.multiprocess": False, "wsgi.run_once": False,
        }  # fmt: skip
        for name, value in request.headers.raw:
            key = name.decode().upper().replace("-", "_")
            environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = value.decode(
                "latin-1"
            )
        started = []
        parts = application(environ, lambda status, headers, *_: started.append((status, headers)))
        try:
            content = b"".join(parts)
        finally:
            parts.close()
        status, headers = started[0]
        return httpx.Response(int(status.split()[0]), headers=headers, content=content)


@contextlib.contextmanager
def speaking():
    """A client that speaks HTTP with the application, without a key."""
    with httpx.Client(transport=WsgiDoor(), base_url="http://127.0.0.1/api/v1") as client:
        yield client
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def wsgi_client():
    with speaking() as client:
        yield client


class Api:
    """One key's view of the API."""

    def __init__(self, client: httpx.Client, token: str):
        self.client, self.headers = client, {"Authorization": f"Bearer {token}"}
        self._ids = itertools.count()

    def request(self, method, path, **more):
        headers = self.headers | more.pop("headers", {})
        return self.client.request(method, path, headers=headers, **more)

    def get(self, path, **params):
        return self.request("GET", path, params=params)

    def post(self, path, json=None, **more):
        return self.request("POST", path, json=json, **more)

    def put(self, path, json=None, **more):
        return self.request("PUT", path, json=json, **more)

    def patch(self, path, json=None, **more):
        return self.request("PATCH", path, json=json, **more)

    def delete(self, path, **params):
        return self.request("DELETE", path, params=params)

    def raw(self, path, content, method="POST", content_type="application/json", **headers):
        return self.request(method, path, content=content, headers={"Content-Type": content_type, **headers})

    def call(self, session="s-1", tool="search_web", arguments=None, **about):
        """Ask the guard about one call."""
        call = {"call_id": f"call-{next(self._ids)}", "tool": tool, "arguments": arguments or {"q": "reset"}}
        return self.post("/guard", {"session": session, "calls": [call], **about})

    def run(self, steps, session="s-1", **more):
        """Make calls, each with its result, and let a person speak; the reactions other than `allow`, by call from 1.

        A step is a tool, its arguments, its result and, if known, whether that is an error; or the text of a person.
        A notice about a result counts at its call. What is blocked does not run, and nothing follows a stop.
        """
        number = 0
        found: dict[Any, Any] = {}
        results: list[Any] = []
        for step in [*steps, None]:
            calls = []
            if isinstance(step, tuple):
                calls = [{"call_id": f"{session}-{number + 1}", "tool": step[0], "arguments": step[1]}]
            body = {"session": session, "results": results, "calls": calls, **more}
            answer = self.post("/guard", body).json() if results or calls else {"notices": []}
            for notice in answer["notices"]:
                found.setdefault(number, (notice["decision"], notice["message"]))
            results = []
            if isinstance(step, str):
                said = {"session": session, "type": "message", "role": "user", "content": step}
                assert self.post("/events", said).status_code < 300
            if not calls:
                continue
            number += 1
            (verdict,) = answer["verdicts"]
            if verdict["decision"] != "allow":
                found[number] = (verdict["decision"], verdict["message"])
            if verdict["decision"] == "stop":
                break
            if verdict["decision"] in ("allow", "warn"):
                _, _, content, *is_error = step
                results = [{"call_id": calls[0]["call_id"], "content": content}]
                results[0] |= {"is_error": is_error[0]} if is_error else {}
        return found

    def loop(self, session="s-1", times=4, **about):
        """Repeat one call until the guard blocks it, or more often; the last answer."""
        return [self.call(session, **about) for _ in range(times)][-1].json()


@pytest.fixture
def api(wsgi_client, key):
    return Api(wsgi_client, key)


@pytest.fixture
def as_other(wsgi_client, other_project):
    return Api(wsgi_client, make_key(other_project))


@pytest.fixture
def with_scopes(wsgi_client, project):
    return lambda *scopes: Api(wsgi_client, make_key(project, scopes=list(scopes)))
