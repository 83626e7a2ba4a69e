"""The chaos command on installations of its own, and what it makes of outcomes that differ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from development.chaos.outcome import Outcome, compare
from development.chaos.runs import runs
from development.chaos.schedule import kinds, schedule
from loopguard_site.supervisor import children

ROOT = Path(__file__).resolve().parents[2]
END_SECONDS = 90


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the command with a place of its own for its folders."""
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "manage.py", "chaos", "--json", str(folder / "report.json"), *arguments],
            cwd=ROOT, env={**os.environ, "LOOPGUARD_BOOTSTRAP": "0", "TMPDIR": str(folder)}, stdout=output, stderr=output,
        )  # fmt: skip


def left_in(folder: Path) -> list[str]:
    """What a run has left behind: processes that know its folder, and folders other than those of kept logs."""
    processes = [pid for pid in children.with_environment("TMPDIR", str(folder)) if children.is_alive(pid)]
    return [
        *map(str, processes),
        *(path.name for path in folder.glob("loopguard-chaos-*") if "logs" not in path.name),
    ]


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="lg-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def check_seeds(folder: Path, number: int, first: int, seconds: float) -> None:
    run = start(folder, "--seeds", str(number), "--seed", str(first))
    try:
        status = run.wait(seconds)
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(END_SECONDS)
    output = (folder / "output").read_text(encoding="utf-8")
    assert status == 0, output
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert (report["seeds"], report["clean"]) == (number, number)
    assert [report[name] for name in ("lost", "duplicated", "different", "late")] == [0, 0, 0, 0]
    assert report["faults"] >= 3 * number
    assert report["contained_calls"] > 10 * number
    assert left_in(folder) == []


@pytest.mark.promise("REL-06", "REL-08", "REL-40")
@pytest.mark.long
def test_ten_seeds_lose_duplicate_and_change_nothing(folder):
    check_seeds(folder, 10, 1, 1200)


@pytest.mark.long
def test_an_interrupted_run_leaves_nothing(folder):
    run = start(folder, "--seeds", "3")
    deadline = time.monotonic() + 120
    while "Started" not in (folder / "output").read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(5)
    run.send_signal(signal.SIGINT)
    assert run.wait(END_SECONDS) == 1
    assert left_in(folder) == []


def test_a_seed_always_has_the_same_faults_and_runs_and_the_seeds_together_every_fault():
    assert schedule(7, with_disk=True, with_clock=True) == schedule(7, with_disk=True, with_clock=True)
    assert runs(7) == runs(7)
    assert runs(7) != runs(8)
    strikes = [strike for seed in range(200) for strike in schedule(seed, with_disk=True, with_clock=True)]
    done = {(fault.action, fault.target) for strike in strikes for fault in strike.faults}
    assert done == set(kinds(with_disk=True, with_clock=True))


def test_what_is_lost_duplicated_or_different_is_told_apart():
    reference = Outcome({"events": Counter([("s", 1, "call"), ("s", 2, "result"), ("s", 3, "call")])})
    found = Outcome({"events": Counter([("s", 1, "call"), ("s", 1, "call"), ("s", 3, "end")])})
    comparison = compare(found, reference)
    assert comparison.lost == ["events: ('s', 2)"]
    assert comparison.duplicated == ["events: ('s', 1)"]
    assert comparison.different == ["events: ('s', 3): end instead of call"]
    assert compare(reference, reference).is_clean
