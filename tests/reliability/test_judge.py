"""When the broker loses the judge's task, a worker finds the approval by itself."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import httpx
import pytest
from django.utils import timezone

from detection.engine.scopes import PROJECT
from detection.models import Approval, JudgeCall
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from tests.support.judge_server import JudgeServer, completion, ruling

from .installation import wait_until

pytestmark = pytest.mark.servers

LIMIT = 3


@pytest.fixture
def judge(project, monkeypatch):
    """A judge that says yes, and a project in which the third round is to be justified."""
    values = {"preset": "justified", "budget_max_rounds": LIMIT, "budget_extension_rounds": 4}
    overrides.save_override(project.pk, PROJECT, values, SYSTEM)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(JudgeServer(lambda request: completion(ruling(request))).running())
        monkeypatch.setenv("LOOPGUARD_JUDGE_URL", server.url)
        monkeypatch.setenv("LOOPGUARD_JUDGE_MODEL", "judge-1")
        yield server


def held_approval(url, token):
    """Ask the guard until it holds a call for the judge; the approval's id."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=10) as client:
        for number in range(LIMIT):
            call = {
                "call_id": f"c{number}",
                "tool": "read_file",
                "arguments": {"path": f"f{number}"},
                "round": f"r{number}",
            }
            answer = client.post("/api/v1/guard", json={"session": "run", "calls": [call]}).json()
    assert answer["decision"] == "hold", answer
    return answer["verdicts"][0]["approval"]["id"]


def test_an_approval_whose_task_the_broker_lost_is_put_to_the_judge_once_by_whichever_worker_finds_it(
    judge, install, token, no_broker
):
    # What web rings reaches nobody; the workers have a broker of their own that knows of nothing.
    web = install(no_broker, worker=False)
    workers = install(web=False)
    workers.start_worker()
    public_id = held_approval(web.url, token)
    # Its 15 seconds are fewer than a slow machine takes to start workers and ask a judge.
    Approval.objects.filter(public_id=public_id).update(deadline=timezone.now() + timedelta(minutes=2))

    def is_decided():
        return not Approval.objects.get(public_id=public_id).is_open

    assert wait_until(is_decided), workers.logs()
    approval = Approval.objects.get(public_id=public_id)
    decided = approval.decision, approval.reason, approval.decided_by
    assert decided == ("allow", "accepted", "judge"), workers.logs()
    assert JudgeCall.objects.filter(approval=approval).count() == 1
    assert len(judge.requests) == 1
