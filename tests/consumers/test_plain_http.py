import httpx
import pytest

from loopguard_site.asgi import application


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/v1/events"), ("GET", "/"), ("GET", "/admin/"), ("POST", "/healthz")]
)
async def test_plain_requests_are_referred_to_web(method, path):
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=application), base_url="http://live"
    ) as http:
        answer = await http.request(method, path, content=b"x" * 100_000)

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "not_here"
