"""A containment stands whatever is killed: each process of an installation in turn, and then all of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

import httpx
import pytest

from development.chaos.installation import Installation
from loopguard_site.supervisor import children

PATIENCE_SECONDS = 60
KILLED = ("web worker", "web", "live", "worker", "beat", "valkey", "postgres", "supervisor")


class Agent:
    """A guarded agent, which asks again while nothing answers."""

    def __init__(self, installation: Installation, key: str) -> None:
        self._url, self._headers, self._asked = installation.url, {"Authorization": f"Bearer {key}"}, 0

    def request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> httpx.Response:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = httpx.request(
                    method, f"{self._url}/api/v1{path}", json=body, headers=self._headers, timeout=5
                )
                if answer.status_code < 500:
                    return answer
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def decision(self, session: str) -> str:
        self._asked += 1
        call = {"call_id": f"c{self._asked}", "tool": "read_file", "arguments": {"page": self._asked}}
        body = {"session": session, "agent": "support", "calls": [call]}
        return str(self.request("POST", "/guard", body).json()["verdicts"][0]["decision"])


@pytest.mark.promise("REL-40")
@pytest.mark.long
def test_it_stands_after_a_kill_of_each_process_and_is_lifted_by_nothing_else():
    with Installation() as installation:
        agent = Agent(installation, installation.create_projects(["shop"])["shop"])
        assert agent.decision("known") == "allow"
        wanted = {"scope": "agent", "value": "support", "reaction": "stop", "reason": "it deletes orders"}
        made = agent.request("POST", "/containments", wanted).json()
        for number, name in enumerate(KILLED):
            pids = installation.pids(name)
            assert pids, name
            children.send(pids[0], signal.SIGKILL)
            if name == "supervisor":
                installation.start()
                installation.wait_until_ready()
            assert agent.decision("known") == "stop", name
            assert agent.decision(f"new-{number}") == "stop", name
        (listed,) = agent.request("GET", "/containments?in_force=true").json()["items"]
        assert listed["id"] == made["id"]
        assert agent.request("DELETE", f"/containments/{made['id']}").status_code == 200
        assert agent.decision("known") == "allow"
