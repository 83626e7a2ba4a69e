"""Whatever was killed or frozen, at whatever moment: the next start succeeds."""

import random
import signal
import time
from pathlib import Path

import pytest

from loopguard_site.supervisor import children

from .running import Run, descendants

KILLS = 50


def start_of(pid: int) -> str:
    """Return when a process started, which tells it from a later one with its number; empty if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_start_after_a_kill_at_any_moment_succeeds(run: Run, seed: int) -> None:
    rng = random.Random(seed)
    up, ready = run.start()
    port = ready["url"].rpartition(":")[2]
    frozen: list[tuple[int, str]] = []
    for _ in range(KILLS // 2):
        alive = descendants(up.pid)[1:]
        rng.shuffle(alive)
        stopped, killed = alive[:1], alive[1 : rng.randrange(1, len(alive) + 1)] if alive else []
        for pid in stopped:
            children.send(pid, signal.SIGSTOP)
        frozen += [(pid, start_of(pid)) for pid in stopped]
        for pid in (*killed, up.pid):
            children.send(pid, signal.SIGKILL)
        up.wait(10)
        up = run.launch("--port", port)
        time.sleep(rng.uniform(0, 12))
        assert up.poll() is None, run.log.read_text()
    children.send(up.pid, signal.SIGKILL)
    up.wait(10)
    up, again = run.start("--port", port)
    assert again["url"] == ready["url"]
    assert [pid for pid, start in frozen if start and start_of(pid) == start] == []
