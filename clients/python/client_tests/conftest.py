"""A LoopGuard server for all tests of a run: the one of this checkout, on a data folder of its own."""

from __future__ import annotations

import json
import os
import sys
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "clients" / "python")]

from development.test_server import running_server


@dataclass(frozen=True)
class Server:
    """A running server, and what it knows about a session.

    `model_url` is the address of a model server that its gateway may forward to, if a test starts one there.
    """

    url: str
    key: str
    model_url: str

    def get(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/api/v1{path}", headers={"Authorization": f"Bearer {self.key}"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)

    def post(self, path: str, document: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/api/v1{path}",
            json.dumps(document).encode(),
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)

    def patch(self, path: str, document: Any) -> None:
        request = urllib.request.Request(
            f"{self.url}/api/v1{path}",
            json.dumps(document).encode(),
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
            method="PATCH",
        )
        urllib.request.urlopen(request, timeout=10).close()

    def session(self, name: str) -> dict[str, Any]:
        return self.get(f"/sessions/{urllib.parse.quote(name, safe='')}")

    def calls(self, name: str) -> list[dict[str, Any]]:
        """The calls of a session, oldest first."""
        items = self.get(f"/sessions/{urllib.parse.quote(name, safe='')}/calls?limit=100")["items"]
        return sorted(items, key=lambda call: call["seq"])


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server of this checkout, or the one that LOOPGUARD_TEST_SERVER names as JSON."""
    if given := os.environ.get("LOOPGUARD_TEST_SERVER"):
        yield Server(**json.loads(given))
        return
    with running_server() as found:
        yield Server(found["url"], found["api_key"], found["model_url"])


@pytest.fixture
def name() -> str:
    """A session that no other test uses."""
    return f"s-{uuid.uuid4().hex[:12]}"
