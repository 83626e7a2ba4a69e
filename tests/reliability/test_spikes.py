"""A flood of reports at several processes of `web`, while agents of the same project and of another one work."""

import os
import threading
from collections import Counter

import httpx
import pytest
from django.db import connection

from detection.models import Event, Project
from detection.services.audit import SYSTEM
from detection.services.keys import create_key
from loopguard_client import Guard
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain_http import PLAIN

from .installation import Installation

LIMIT = 60
FLOOD = 400


@pytest.fixture
def web(project, tmp_path):
    installation = Installation(os.environ["REDIS_URL"], tmp_path)
    try:
        installation.start_web(processes=2)
        yield installation
    finally:
        installation.stop()


def send(url, token, session, number):
    call = {"type": "call", "session": session, "tool": "t", "arguments": {"n": number}}
    headers = {"Authorization": f"Bearer {token}", "Connection": "close"}
    return httpx.post(
        f"{url}/api/v1/events", json=call, headers=headers, verify=PLAIN, timeout=30
    ).status_code


@pytest.mark.promise("REL-45")
def test_a_flood_is_held_back_and_neither_guarded_agents_nor_another_project_notice(web, project, token):
    other = Project.objects.create(slug="rivals", name="Rivals", spike_action="reject", spike_limit=LIMIT)
    Project.objects.filter(pk=project.pk).update(spike_action="reject", spike_limit=LIMIT)
    reporter = create_key(project, "reports", SYSTEM, scopes=["ingest"])[1]
    rival = create_key(other, "reports", SYSTEM, scopes=["ingest"])[1]
    statuses: Counter[int] = Counter()

    def flood(of):
        for number in range(FLOOD // 4):
            statuses[send(web.url, reporter, f"flood-{of}", number)] += 1

    floods = [threading.Thread(target=flood, args=(of,), daemon=True) for of in range(4)]
    for one in floods:
        one.start()
    guard = Guard(web.url, token, budget_seconds=30)
    session = guard.session("guarded")
    session.user_message("Reset the password.")
    verdicts = [session.check("search", {"q": "reset"}) for _ in range(5)]
    assert verdicts[-1].decision in ("block", "stop")
    for one in floods:
        one.join(PATIENCE_SECONDS)
        assert not one.is_alive()
    session.user_message("Try another word.")
    verdicts.append(session.check("search", {"q": "recover"}))
    assert {verdict.source for verdict in verdicts} == {"server"}
    assert guard.close(30)
    assert {send(web.url, rival, "calm", number) for number in range(LIMIT // 2)} == {202}
    assert set(statuses) == {202, 429}
    connection.close()
    assert Event.objects.filter(session__external_id__startswith="flood").count() == statuses[202]
    # Of two minutes at most, and what arrives before the processes know of each other.
    assert LIMIT <= statuses[202] < FLOOD
