"""`manage.py up` as an operator runs it: the whole of LoopGuard, really started."""

import contextlib
import json
import random
import signal
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from loopguard_site.supervisor import addresses, children
from loopguard_site.supervisor.welcome import curl_line
from tests.support.programs import needs_curl

from .running import ROOT, descendants


def wait_for(check, seconds=60):
    deadline = time.monotonic() + seconds
    while not check() and time.monotonic() < deadline:
        time.sleep(0.1)
    return check()


@needs_curl
def test_a_first_start_a_crash_and_a_second_start_keep_the_data_and_leave_no_process(run):
    del run.environment["LOOPGUARD_WEB_PROCESSES"], run.environment["LOOPGUARD_WORKER_PROCESSES"]
    run.environment["TOOL_LOOP_MAX_REPEATS"] = "5"
    up, ready = run.start()
    assert set(ready) == {"url", "live_url", "api_key", "username", "password"}
    assert run.ready_file.stat().st_mode & 0o777 == 0o600
    assert int(ready["live_url"].rpartition(":")[2]) == int(ready["url"].rpartition(":")[2]) + 1

    # The printed line works as it stands.
    printed = run.log.read_text()
    line = curl_line(ready["url"], ready["api_key"], 5)
    assert line in printed
    assert "The 5th call is blocked." in printed
    assert ready["password"] in printed
    output = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    answers = [json.loads(text) for text in output.splitlines() if text]
    assert [answer["decision"] for answer in answers] == ["allow"] * 4 + ["block"]

    # A second start names the address of the first one.
    second = subprocess.run(
        run.command(), cwd=ROOT, env=run.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 1
    assert f"already running at {ready['url']}" in second.stderr

    # A kill leaves no process behind (on Linux, whose kernel tells children of their parent's death). Where more dies
    # at the same moment, helpers may remain that hold the port; the next start ends them.
    before, pids = run.servers(), run.pids()
    assert len(pids) >= 5
    frozen, *killed = random.sample(pids, 4)
    children.send(frozen, signal.SIGSTOP)
    for pid in (up.pid, *killed):
        children.send(pid, signal.SIGKILL)
    up.wait(10)

    # The next start, on the same port, finds the data, shows no secrets again and gives the database roles new passwords.
    run.environment |= {"LOOPGUARD_MIN_FREE": "100%", "LOOPGUARD_WEB_PROCESSES": "1"}
    up, again = run.start("--port", ready["url"].rpartition(":")[2])
    assert again == {"url": ready["url"], "live_url": ready["live_url"]}
    assert not any(children.is_alive(pid) for pid in pids)
    now = run.servers()
    for address in ("DATABASE_URL", "LOOPGUARD_OWNER_DATABASE_URL"):
        assert now[address] != before[address]
    key = {"Authorization": f"Bearer {ready['api_key']}"}
    with httpx.Client(base_url=f"{again['url']}/api/v1", headers=key, timeout=10) as client:
        session = answers[0]["session"]
        assert client.get(f"/sessions/{session}").json()["session"] == session
        # It watches the disk of the database's files, whose folder the supervisor names.
        full = client.post("/events", json={"type": "call", "session": "s", "tool": "t"})
        assert (full.status_code, full.json()["code"]) == (503, "storage_full")
    assert "LoopGuard is read-only" in run.log.read_text()
    assert Path(now["LOOPGUARD_DATABASE_FOLDER"], "PG_VERSION").exists()

    # A note that cannot be written, as on a full disk, is written later.
    note, beat = run.data / "running.json", run.pids()[-1]
    for _ in range(10):
        with contextlib.suppress(FileExistsError):  # the supervisor wrote it between the two
            note.unlink()
            note.mkdir()
            break
    assert note.is_dir()
    children.send(beat, signal.SIGKILL)
    assert wait_for(lambda: "cannot be written" in run.log.read_text())
    note.rmdir()
    assert wait_for(note.is_file)
    assert beat not in run.pids()

    pids = run.pids()
    up.send_signal(signal.SIGTERM)
    assert up.wait(60) == 0
    assert not any(children.is_alive(pid) for pid in pids)
    assert not (run.data / "running.json").exists()


@pytest.mark.parametrize("way", ["kernel", "undertaker"])
def test_a_killed_supervisor_takes_everything_with_it(run, way):
    """Linux ends the children itself; on macOS a small process does, which a pipe tells that its owner has died."""
    run.environment["LOOPGUARD_UNDERTAKER"] = "1" if way == "undertaker" else "0"
    up, _ = run.start()
    pids = [*run.pids(), *descendants(up.pid)[1:]]
    assert any("undertaker" in " ".join(psutil.Process(pid).cmdline()) for pid in pids) == (
        way == "undertaker"
    )
    children.send(up.pid, signal.SIGKILL)
    up.wait(10)
    for pid in pids:
        assert children.wait_until_gone(pid, 60), pid
    assert run.start()[1]["url"]


def test_an_interrupted_start_leaves_nothing_running(run):
    up = run.launch()
    pid_file = run.data / "postgres" / "cluster" / "postmaster.pid"
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and "\n" in pid_file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    server = int(pid_file.read_text().split("\n", 1)[0])
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0
    assert not children.is_alive(server)


def test_a_taken_port_is_reported_before_anything_starts(run):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*run.command(), "--port", str(port)],
            cwd=ROOT, env=run.environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"Port {port} of 127.0.0.1 is in use" in done.stderr
    assert not (run.data / "postgres").exists()
    assert not addresses.answers("127.0.0.1", port + 1, "/healthz")


@pytest.mark.long
def test_a_start_that_fails_still_shows_the_new_login(run):
    up = run.launch(GRANIAN_BACKLOG="none")  # `web` rejects it and never answers
    deadline = time.monotonic() + 120
    while "web ended (status 2)" not in run.log.read_text():
        assert up.poll() is None, run.log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    up.send_signal(signal.SIGTERM)
    assert up.wait(60) == 0
    assert "  API key   lg_" in run.log.read_text()
