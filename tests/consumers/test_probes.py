import httpx
import pytest
from django.db import connections

from detection.selectors.database_check import database_check
from loopguard_site.asgi import application


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
