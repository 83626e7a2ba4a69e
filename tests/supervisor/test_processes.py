"""Children are kept running, their lines passed on, and ended together."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loopguard_site import heartbeat, succession
from loopguard_site.supervisor import children, processes
from loopguard_site.supervisor.console import Console
from loopguard_site.supervisor.processes import Fleet, Process
from tests.support.patience import PATIENCE_SECONDS


class Kept(Console):
    """A console that keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def line(self, name: str, text: str) -> None:
        self.lines.append((name, text))

    def said_by(self, name: str) -> list[str]:
        return [text for who, text in self.lines if who == name]


@pytest.fixture
def console() -> Kept:
    return Kept()


@pytest.fixture
def fleet(console: Kept, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet([], {"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}, tmp_path, console, lambda: None)
    yield fleet
    fleet.end(0, lambda: True)


def script(name: str, text: str, **options: Any) -> Process:
    return Process(name, [sys.executable, "-c", text], **options)


def tick_until(fleet: Fleet, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        fleet.tick(0.02)


def test_lines_carry_the_name_of_who_said_them_whole_and_in_order(fleet, console):
    fleet.add(
        script("one", "print('a'); print('b', end=''); import sys; sys.stderr.write('c\\n')", kept=False)
    )
    fleet.add(script("two", "import os; os.write(1, b'no end of line \\xff')", kept=False))
    tick_until(fleet, lambda: all(process.status is not None for process in fleet.processes))
    assert console.said_by("one") == ["a", "bc"]
    assert console.said_by("two") == ["no end of line \ufffd"]


def test_a_line_without_end_does_not_fill_the_memory(fleet, console):
    fleet.add(script("loud", "import os\nfor _ in range(40): os.write(1, b'x' * 10_000)", kept=False))
    tick_until(fleet, lambda: fleet.processes[0].status is not None)
    assert sum(map(len, console.said_by("loud"))) == 400_000
    assert len(console.said_by("loud")) > 1


def test_a_child_that_dies_is_started_again_with_growing_pauses(fleet, console):
    process = script("frail", "raise SystemExit(3)")
    fleet.add(process)
    tick_until(fleet, lambda: process.pause_seconds >= 2)
    assert console.said_by("loopguard")[:2] == [
        "frail ended (status 3). Restarting it in 0.5 s.",
        "frail ended (status 3). Restarting it in 1 s.",
    ]


@pytest.mark.promise("REL-05")
def test_a_child_whose_heartbeat_stops_is_replaced(fleet, console, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_HANG_SECONDS", 0.4)
    process = script(
        "worker",
        "import os, signal, time\n"
        "print('up', flush=True)\n"
        "time.sleep(0.6)\n"  # a start may take longer
        f"for _ in range(3): os.utime(os.environ['{heartbeat.VARIABLE}']); time.sleep(0.2)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)",
        heartbeat=tmp_path / "worker.heartbeat",
    )
    fleet.add(process)
    tick_until(fleet, lambda: console.said_by("worker") == ["up", "up"])
    assert console.said_by("loopguard") == [
        "worker hangs: no heartbeat for 0.4 s. Killing it.",
        "worker ended (SIGKILL). Restarting it in 0.5 s.",
    ]


def test_a_killed_child_leaves_no_helpers_that_hold_its_port(fleet, console, tmp_path):
    helper = (
        "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    )
    process = script("server", helper)
    fleet.add(process)
    tick_until(fleet, lambda: bool(console.said_by("server")))
    helper_pid = int(console.said_by("server")[0])
    process.child.kill()
    tick_until(fleet, lambda: "server ended (SIGKILL)" in "".join(console.said_by("loopguard")))
    assert children.wait_until_gone(helper_pid, 5)


def test_helpers_of_a_killed_child_serve_until_its_successor_does(fleet, console, tmp_path):
    server = (
        "import os, signal, subprocess, sys, time\n"
        # A second signal must not come between the words of a line.
        "served = f'import signal, time; end = lambda *_: (signal.signal(signal.SIGTERM, signal.SIG_IGN), '"
        "f'print({os.getpid()}, \"ended\"), exit()); signal.signal(signal.SIGTERM, end); '"
        "f'print({os.getpid()}, \"serves\"); time.sleep(60)'\n"
        "subprocess.Popen([sys.executable, '-c', served])\n"
        f"while not os.path.exists({str(tmp_path / 'may serve')!r}): time.sleep(0.05)\n"
        f"os.utime(os.environ['{succession.SERVING_VARIABLE}'])\n"
        "time.sleep(60)"
    )
    process = script("server", server, serving=tmp_path / "serving")
    process.check = lambda: (
        None if process.child is None and not console.lines else pytest.fail("the port is taken")
    )
    fleet.add(process)

    def kill():
        tick_until(fleet, lambda: f"{process.pid} serves" in console.said_by("server"))
        pid = process.pid
        process.child.kill()
        tick_until(fleet, lambda: process.pid not in (pid, None))
        return pid

    first, second = kill(), kill()
    assert [one.group for one in process.formers] == [first, second]  # nobody else serves yet
    assert not any(line.endswith("ended") for line in console.said_by("server"))
    (tmp_path / "may serve").touch()
    tick_until(fleet, lambda: not process.formers)
    ended = sorted(line for line in console.said_by("server") if line.endswith("ended"))
    assert ended == sorted([f"{first} ended", f"{second} ended"])
    third = kill()
    assert [one.group for one in process.formers] == [third]
    fleet.end(10, lambda: False)
    assert not children.signal_group(third)
    assert f"{third} ended" in console.said_by("server")


@pytest.mark.promise("REL-06")
def test_a_child_may_finish_what_it_is_at(fleet, console):
    careful = (
        "import signal, sys, time\n"
        "def end(*_): time.sleep(0.3); print('finished'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); print('up'); time.sleep(60)"
    )
    fleet.add(script("careful", careful))
    tick_until(fleet, lambda: console.said_by("careful") == ["up"])
    fleet.end(10, lambda: False)
    assert console.said_by("careful") == ["up", "finished"]


def test_a_child_that_will_not_end_is_killed_when_patience_or_the_operator_runs_out(fleet, console):
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
    )
    process = script("stubborn", stubborn)
    fleet.add(process)
    tick_until(fleet, lambda: console.said_by("stubborn") == ["up"])
    pid = process.pid
    fleet.end(30, lambda: True)
    assert not children.is_alive(pid)
    assert console.said_by("loopguard") == ["Killing stubborn, still running."]


def test_a_child_has_a_session_of_its_own_so_that_ctrl_c_reaches_only_the_supervisor(fleet, console):
    fleet.add(script("child", "import os; print(os.getsid(0) == os.getpid())", kept=False))
    tick_until(fleet, lambda: fleet.processes[0].status is not None)
    assert console.said_by("child") == ["True"]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_in_the_middle_of_the_start_of_a_child_leaves_none_running(stop, console, tmp_path):
    class Stopped(BaseException):
        pass

    def on_stop(*_):
        raise Stopped

    account: Any = SimpleNamespace(take=lambda: os.kill(os.getppid(), stop))  # runs between fork and program
    child = script("child", "import time; time.sleep(60)")
    fleet = Fleet([child], {"PATH": "/usr/bin:/bin"}, tmp_path, console, lambda: None, account)
    before = signal.signal(stop, on_stop)
    try:
        with pytest.raises(Stopped):
            fleet.tick()
    finally:
        signal.signal(stop, before)
    pid = child.pid
    assert children.is_alive(pid)
    fleet.end(0, lambda: True)
    assert not children.is_alive(pid)
