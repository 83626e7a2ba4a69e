"""`manage.py up` as an operator runs it: the whole of LoopGuard, really started."""

import json
import signal
import subprocess
import sys
import time
import urllib.request

from loopguard_site.supervisor import addresses, children
from loopguard_site.supervisor.welcome import curl_line

from .running import ROOT


def get(url: str, key: str) -> dict[str, object]:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def test_from_nothing_to_a_stopped_loop_through_a_crash_to_a_clean_end(run):
    up, ready = run.start()
    assert set(ready) == {"url", "live_url", "api_key", "username", "password"}
    assert run.ready_file.stat().st_mode & 0o777 == 0o600
    assert int(ready["live_url"].rpartition(":")[2]) == int(ready["url"].rpartition(":")[2]) + 1

    # The line that is printed, run as it stands.
    printed = run.log.read_text()
    line = curl_line(ready["url"], ready["api_key"])
    assert line in printed
    assert ready["password"] in printed
    said = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    answers = [json.loads(text) for text in said if text]
    assert [answer["decision"] for answer in answers] == ["allow", "allow", "allow", "stop"]

    # A second start says where the first one is.
    second = subprocess.run(
        run.command(), cwd=ROOT, env=run.environment, capture_output=True, text=True, check=False
    )
    assert second.returncode == 1
    assert f"running already at {ready['url']}" in second.stderr

    # Other commands find the servers of what runs.
    command = [sys.executable, "manage.py", "shell", "-v", "0", "-c"]
    count = subprocess.run(
        [*command, "from detection.models import Session; print(Session.objects.count())"],
        cwd=ROOT, env={**run.environment, "LOOPGUARD_DATA": str(run.data)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert count.stdout.strip() == "1"

    # Killed hard, nothing is left behind (but where no signal tells children of their parent's death) ...
    pids = run.pids()
    assert len(pids) >= 5
    up.kill()
    up.wait()
    if sys.platform == "linux":
        assert all(children.wait_until_gone(pid, 20) for pid in pids)

    # ... and the next start finds the data, and shows no secrets again.
    up, again = run.start()
    assert set(again) == {"url", "live_url"}
    session = answers[0]["session"]
    assert get(f"{again['url']}/api/v1/sessions/{session}", ready["api_key"])["session"] == session

    pids = run.pids()
    up.send_signal(signal.SIGTERM)
    assert up.wait(60) == 0
    assert not any(children.is_alive(pid) for pid in pids)
    assert not (run.data / "running.json").exists()


def test_a_start_cut_short_leaves_nothing_running(run):
    up = subprocess.Popen(run.command(), cwd=ROOT, env=run.environment, stdout=subprocess.DEVNULL)
    pid_file = run.data / "postgres" / "cluster" / "postmaster.pid"
    deadline = time.monotonic() + 60
    while not pid_file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    server = int(pid_file.read_text().split("\n", 1)[0])
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0
    assert not children.is_alive(server)


def test_a_taken_port_is_said_before_anything_is_started(run):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*run.command(), "--port", str(port)],
            cwd=ROOT, env=run.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"Port {port} of 127.0.0.1 is taken" in done.stderr
    assert not (run.data / "postgres").exists()
    assert not addresses.answers("127.0.0.1", port + 1, "/healthz")


def test_a_login_made_by_a_start_that_failed_is_shown_all_the_same(run):
    refused = {"LOOPGUARD_WEB_THREADS": "none"}  # by `web`, which then never answers
    with run.log.open("wb") as log:
        up = subprocess.Popen(run.command(), cwd=ROOT, env=run.environment | refused, stdout=log, stderr=log)
    deadline = time.monotonic() + 120
    while "web ended (status 2)" not in run.log.read_text():
        assert up.poll() is None, run.log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    up.send_signal(signal.SIGTERM)
    assert up.wait(60) == 0
    assert "  API key   lg_" in run.log.read_text()
