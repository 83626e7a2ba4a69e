"""The audit of dependencies, with a server in place of the one of advisories."""

import http.server
import json
import threading
from contextlib import contextmanager
from typing import Any

import pytest

from development import advisories
from development.commands import ROOT
from tests.support.closed_port import closed_port


@contextmanager
def advisory_server(answer):
    """Answer each question as OSV does; yields the address and what was asked."""
    asked: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.extend(query["package"]["purl"] for query in body["queries"])
            content = json.dumps(answer(asked)).encode()
            self.send_response(200 if self.path == "/v1/querybatch" else 404)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def test_every_package_and_the_browser_code_are_asked_about(capsys):
    with advisory_server(lambda asked: {"results": [{} for _ in asked]}) as (url, asked):
        assert advisories.audit(ROOT, url) == 0
    names = {purl.partition("@")[0] for purl in asked}
    assert {"pkg:pypi/django", "pkg:pypi/celery", "pkg:npm/htmx.org", "pkg:npm/%40alpinejs/csp"} <= names
    assert f"{len(asked)} packages checked, 0 with known vulnerabilities." in capsys.readouterr().out


@pytest.mark.promise("SEC-29")
def test_a_known_vulnerability_fails_the_audit(capsys):
    def answer(asked):
        return {"results": [{"vulns": [{"id": "GHSA-1"}]} if "/django@" in purl else {} for purl in asked]}

    with advisory_server(answer) as (url, _):
        assert advisories.audit(ROOT, url) == advisories.VULNERABLE
    assert "https://osv.dev/vulnerability/GHSA-1" in capsys.readouterr().out


@pytest.mark.parametrize("answer", [None, {"results": []}, {"results": 7}, []])
def test_without_advisory_data_the_audit_says_that_nothing_was_checked(answer, capsys):
    with advisory_server(lambda asked: answer) as (url, _), closed_port() as port:
        url = url if answer is not None else f"http://127.0.0.1:{port}"
        assert advisories.audit(ROOT, url) == advisories.UNAVAILABLE
    assert "is unavailable" in capsys.readouterr().err
