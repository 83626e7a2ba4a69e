"""The audit of dependencies, with a server in place of the one of advisories."""

from contextlib import contextmanager

import pytest

from development import advisories
from development.commands import ROOT
from tests.support.closed_port import closed_port
from tests.support.model_server import ModelServer, of_json


@contextmanager
def advisory_server(answer):
    """Answer each question as OSV does; yields the address and what was asked."""
    packages: list[str] = []

    def script(asked):
        packages.extend(query["package"]["purl"] for query in asked.document["queries"])
        return of_json(answer(packages), 200 if asked.path == "/v1/querybatch" else 404)

    with ModelServer(script).running() as server:
        yield server.url, packages


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
