import httpx
import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from detection.selectors.database_check import database_check
from loopguard_site.asgi import application
from tests.support.projects import make_key, make_project


def client():
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=application), base_url="http://live")


async def test_probes_answer_as_those_of_web(transactional_db):
    async with client() as http:
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        database_check.clear()
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        head = await http.head("/readyz")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) == len(ready.content)
        database_check.clear()
        settings = connections["default"].settings_dict
        host, settings["HOST"] = settings["HOST"], "/nowhere"
        try:
            away = await http.get("/readyz")
        finally:
            settings["HOST"] = host
            database_check.clear()
        assert (away.status_code, away.headers["retry-after"]) == (503, "1")
        assert (await http.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/v1/events"), ("GET", "/"), ("GET", "/admin/"), ("POST", "/healthz")]
)
async def test_plain_requests_are_referred_to_web(method, path):
    async with client() as http:
        answer = await http.request(method, path, content=b"x" * 100_000)

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "not_here"


async def test_metrics_are_for_this_machine_and_for_keys_with_the_scope_metrics_or_admin(transactional_db):
    project = await sync_to_async(make_project)()
    reader = await sync_to_async(make_key)(project, scopes=["metrics"])
    other = await sync_to_async(make_key)(project, scopes=["read"])
    elsewhere = {"X-Forwarded-For": "192.0.2.7"}
    async with client() as http:
        assert (await http.get("/metrics")).status_code == 401  # this machine by another name
        local = await http.get("/metrics", headers={"Host": "localhost:8301"})
        assert local.status_code == 200
        assert "# TYPE loopguard_live_connections gauge" in local.text
        assert (await http.get("/metrics", headers=elsewhere)).status_code == 401
        for token, status in ((reader, 200), (other, 401), ("lg_nonsense", 401)):
            headers = elsewhere | {"Authorization": f"Bearer {token}"}
            assert (await http.get("/metrics", headers=headers)).status_code == status
