"""Several processes of `web` on one port."""

import os
import re

import httpx
import pytest

from detection.api.app import api
from loopguard_site import env
from loopguard_site.front.traffic import Traffic, seconds_of
from tests.support.plain_http import PLAIN

from .installation import Installation

REQUESTS = 24


@pytest.fixture
def web(project, tmp_path):
    installation = Installation(os.environ["REDIS_URL"], tmp_path, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    try:
        installation.start_web(processes=2)
        yield installation
    finally:
        installation.stop()


def counted(url):
    text = httpx.get(f"{url}/metrics", verify=PLAIN).text
    found = re.search(
        r'^loopguard_ingest_requests_total\{.*route="guard",status="200".*\} (\S+)$', text, re.MULTILINE
    )
    return float(found[1]) if found else 0.0


def test_metrics_count_the_requests_of_all_processes(web, token):
    headers = {"Authorization": f"Bearer {token}"}
    for number in range(REQUESTS):
        # A connection each, so that both processes get some.
        call = {"call_id": f"c{number}", "tool": "search", "arguments": {"q": number}}
        sent = {"session": f"s{number % 3}", "calls": [call]}
        url = f"{web.url}/api/v1/guard"
        assert httpx.post(url, json=sent, headers=headers, verify=PLAIN).status_code == 200

    assert {counted(web.url) for _ in range(6)} == {REQUESTS}
    assert httpx.get(f"{web.url}/metrics").text.count("# TYPE loopguard_database_up gauge") == 1


def test_routes_that_need_no_key_get_their_bodies(web):
    routes = [
        path
        for path, operations in api.get_openapi_schema()["paths"].items()
        for operation in operations.values()
        if "security" not in operation and "requestBody" in operation
    ]
    assert routes == ["/api/v1/install-codes/exchange"]
    for path in routes:
        answer = httpx.post(f"{web.url}{path}", json={"code": "7kq2wd-unknown"}, verify=PLAIN)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_code")


@pytest.mark.parametrize("name", ["LOOPGUARD_WEB_PROCESSES", "LOOPGUARD_WORKER_PROCESSES"])
@pytest.mark.parametrize("given", ["0", "17", "two", "1.5"])
def test_a_wrong_number_of_processes_is_rejected_at_the_start(name, given):
    with pytest.raises(env.EnvironmentProblem, match=f"^{name} must be between 1 and 16"):
        env.read({"LOOPGUARD_MODE": "test", name: given})


@pytest.mark.parametrize("given", ["0.1", "21", "soon", "nan", "-1"])
def test_a_wrong_deadline_of_the_guard_is_rejected_at_the_start(given):
    with pytest.raises(env.EnvironmentProblem, match=r"^LOOPGUARD_GUARD_SECONDS must be between 0\.2 and 20"):
        env.read({"LOOPGUARD_MODE": "test", "LOOPGUARD_GUARD_SECONDS": given})


def test_a_client_shortens_the_deadline_of_its_call_and_never_extends_it():
    assert env.read({"LOOPGUARD_MODE": "test", "LOOPGUARD_GUARD_SECONDS": "4"}).guard_seconds == 4
    guard = [seconds_of(Traffic.GUARD, budget, 4.0) for budget in (None, "", "300", "9000", "soon")]
    assert guard == [4.0, 4.0, 0.3, 4.0, 4.0]
    assert seconds_of(Traffic.BULK, "300", 4.0) == 10.0
