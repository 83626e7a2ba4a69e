"""A containment stands whatever dies: it is a row that every call reads, and no process carries it out."""

import httpx
import pytest

from detection.models import Containment
from detection.services.audit import Actor
from detection.services.containments import containments
from detection.services.containments.containments import Wanted
from tests.support.plain_http import PLAIN

pytestmark = pytest.mark.servers


def decision(installation, token, session, number):
    call = {"call_id": f"c{number}", "tool": "t", "arguments": {"page": number}}
    answer = httpx.post(
        f"{installation.url}/api/v1/guard",
        json={"session": session, "agent": "support", "calls": [call]},
        headers={"Authorization": f"Bearer {token}"},
        timeout=20,
        verify=PLAIN,
    )
    return answer.json()["decision"]


@pytest.mark.promise("REL-40")
def test_it_stands_without_broker_and_worker_and_after_web_is_killed(install, project, token):
    """Created by another process than those that serve calls, while the broker is unreachable and no worker runs."""
    installation = install("redis://127.0.0.1:9/0", worker=False)
    assert decision(installation, token, "known", 1) == "allow"
    assert decision(installation, token, "known", 2) == "allow"
    found = containments.contain(project.pk, Wanted("agent", "support", "stop"), Actor("command line"))
    assert decision(installation, token, "known", 3) == "stop"
    assert decision(installation, token, "new", 1) == "stop"
    installation.stop()
    restarted = install("redis://127.0.0.1:9/0", worker=False)
    assert decision(restarted, token, "known", 4) == "stop"
    containments.lift(project.pk, found.public_id, Actor("command line"))
    assert decision(restarted, token, "known", 5) == "allow"
    assert Containment.objects.get().lifted_by == "command line"
