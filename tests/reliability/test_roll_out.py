"""Processes are replaced one after the other under load: no request is lost, as whoever asks about readiness notices."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import psycopg
import pytest

from detection.engine.scopes import PROJECT
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from loopguard_site import env
from tests.support.load import Load
from tests.support.plain_http import PLAIN

from .balancer import Balancer, readiness
from .installation import Installation, wait_until

DRAIN_SECONDS = "1.5"


@pytest.fixture
def installation(project, tmp_path) -> Iterator[Installation]:
    # A process that has just started on a machine that has other work is slow at first.
    patient = {"LOOPGUARD_GUARD_SECONDS": "20"}
    made = Installation(os.environ["REDIS_URL"], tmp_path, LOOPGUARD_DRAIN_SECONDS=DRAIN_SECONDS, **patient)
    yield made
    made.stop()


@pytest.mark.promise("REL-42")
def test_a_roll_out_of_web_loses_no_request(installation, token):
    installation.start_worker()
    old = installation.start_web()
    old_url = installation.url
    balancer = Balancer([old_url])
    with balancer.looking(), Load(balancer, token) as load:
        load.work_on()
        installation.start_web()
        balancer.addresses.append(installation.url)
        load.work_on()
        old.send_signal(signal.SIGTERM)
        assert wait_until(lambda: readiness(old_url) == 503)
        assert httpx.get(f"{old_url}/healthz", verify=PLAIN).status_code == 200
        load.work_on()
        old.wait(60)
        load.work_on()
    # On a machine that is busy with starts, one may wait for a lock in vain, and be asked to come again.
    assert {*load.unanswered} <= {503}, installation.logs()
    with psycopg.connect(installation.database_url) as database:
        load.check_counts(database)


@pytest.mark.promise("REL-06")
def test_live_says_first_that_it_ends_and_answers_who_waits(installation, project, token):
    """A long poll of an approval that nobody has decided gets the answer that it would get at the end of its time."""
    overrides.save_override(project.pk, PROJECT, {"mode": "ask"}, SYSTEM)
    installation.start_web()
    live = installation.start_live()
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(headers=headers, verify=PLAIN, timeout=60) as client:
        call = {"tool": "look", "arguments": {}}
        verdicts = [
            client.post(
                f"{installation.url}/api/v1/guard",
                json={"session": "s", "calls": [call | {"call_id": f"c{number}"}]},
            ).json()["verdicts"][0]
            for number in range(4)
        ]
        approval = next(one["approval"]["id"] for one in verdicts if one.get("approval"))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.get, f"{installation.live_url}/api/v1/approvals/{approval}?wait=60")
            assert wait_until(lambda: len(psutil.Process(live.pid).net_connections("tcp")) > 1)
            live.send_signal(signal.SIGTERM)
            assert wait_until(lambda: readiness(installation.live_url) == 503)
            answer = waiting.result()
        assert (answer.status_code, answer.json()["state"]) == (200, "open")
        live.wait(60)


@pytest.mark.parametrize("given", ["-1", "61", "soon", "nan"])
def test_a_wrong_time_to_drain_is_rejected_at_the_start(given):
    with pytest.raises(
        env.EnvironmentProblem, match=r"^LOOPGUARD_DRAIN_SECONDS must be a number of seconds from 0 to 60"
    ):
        env.read({"LOOPGUARD_MODE": "test", "LOOPGUARD_DRAIN_SECONDS": given})
