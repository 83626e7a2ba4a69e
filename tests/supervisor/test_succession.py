"""`web` answers without a gap when its main process dies."""

from __future__ import annotations

import signal
import time

import psutil
import psycopg
import pytest

from loopguard_site.supervisor import children
from tests.support.load import Load
from tests.support.patience import PATIENCE_SECONDS

from .running import Run


def web_main(run: Run) -> int:
    """Return the main process of `web` that the supervisor knows; 0 while there is none."""
    found = [pid for pid in run.pids() if children.is_alive(pid) and "granian" in " ".join(command(pid))]
    return found[0] if found else 0


def command(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def wait_for(condition) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.promise("REL-41")
def test_agents_are_answered_while_the_main_process_of_web_dies_and_is_replaced(run):
    _, ready = run.start()
    with Load(lambda: ready["url"], ready["api_key"]) as load:
        load.work_on()
        for _ in range(2):
            main = web_main(run)
            serving = [child.pid for child in psutil.Process(main).children()]
            children.send(main, signal.SIGKILL)
            load.work_on()
            wait_for(lambda main=main: web_main(run) not in (0, main))
            for pid in serving:  # they end, once their successors serve
                assert children.wait_until_gone(pid, PATIENCE_SECONDS)
            load.work_on()
    # A connection that nobody has accepted yet may be reset at the end of a process; none was refused, as the port
    # never was without one.
    assert "ConnectError" not in load.unanswered
    with psycopg.connect(run.servers()["LOOPGUARD_OWNER_DATABASE_URL"]) as database:
        load.check_counts(database)


def test_what_serves_without_a_main_process_ends_with_the_supervisor(run):
    up, _ = run.start()
    main = web_main(run)
    serving = [child.pid for child in psutil.Process(main).children()]
    children.send(up.pid, signal.SIGSTOP)  # it cannot notice
    children.send(main, signal.SIGKILL)
    assert all(children.is_alive(pid) for pid in serving)
    children.send(up.pid, signal.SIGKILL)
    up.wait(10)
    for pid in serving:
        assert children.wait_until_gone(pid, PATIENCE_SECONDS)


def test_a_supervisor_that_dies_while_web_is_replaced_starts_again_on_its_port(run):
    """What begins to serve when both are gone has not read the signal to end yet, and must not keep the port."""
    up, ready = run.start()
    for _ in range(2):
        children.send(main := web_main(run), signal.SIGKILL)
        wait_for(lambda main=main: web_main(run) not in (0, main))
        wait_for(lambda: psutil.Process(web_main(run)).children())  # it imports the code
        children.send(up.pid, signal.SIGKILL)
        up.wait(10)
        up, again = run.start("--port", ready["url"].rpartition(":")[2])
        assert again["url"] == ready["url"]
