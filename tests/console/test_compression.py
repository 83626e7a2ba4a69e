"""Pages travel compressed; verdicts and files do not."""

import gzip
from typing import Any

from tests.console.scenes import make_world
from tests.support.projects import make_key


def test_pages_are_compressed_and_the_api_is_not(db):
    world = make_world()
    accept: dict[str, Any] = {"headers": {"Accept-Encoding": "gzip"}}
    for path in ("/sessions", "/sessions/s-1", "/session/rows?since="):
        page = world.client.get(world.base + path, **accept)
        assert page.headers["Content-Encoding"] == "gzip", path
        assert "Accept-Encoding" in page.headers["Vary"]
        plain = world.client.get(world.base + path)
        assert "Content-Encoding" not in plain.headers
        assert abs(len(gzip.decompress(page.content)) - len(plain.content)) < 300
    key = {"Authorization": f"Bearer {make_key(world.project)}", "Accept-Encoding": "gzip"}
    assert "Content-Encoding" not in world.client.get("/api/v1/sessions", headers=key).headers
    assert "Content-Encoding" not in world.client.get(f"{world.base}/export/audit", **accept).headers


def test_two_responses_of_a_page_share_neither_token_nor_length(db):
    world = make_world()
    pages = [
        world.client.get(f"{world.base}/sessions", headers={"Accept-Encoding": "gzip"}).content
        for _ in range(12)
    ]
    assert len({len(page) for page in pages}) > 1
    tokens = {gzip.decompress(page).partition(b'csrfmiddlewaretoken" value="')[2][:64] for page in pages}
    assert len(tokens) == len(pages)
