"""The engine as other programs use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from detection.engine import Guard
from detection.engine.policy import PolicyError


def test_calls_and_results_in_verdicts_out():
    guard = Guard(secret=b"s")
    decisions = []
    for i in range(4):
        decisions.append(guard.call("search", {"q": "x"}, at=float(i)).decision)
        guard.result(f"call-{i + 1}", "0 hits", False, at=float(i))

    assert decisions == ["allow", "allow", "warn", "stop"]


def test_a_preset_and_single_settings_may_be_named():
    guard = Guard("proxy", max_repeats=2)
    assert [guard.call("t", "{}", at=0.0).decision for _ in range(2)] == ["allow", "stop"]


def test_a_wrong_setting_is_rejected():
    with pytest.raises(PolicyError):
        Guard(max_repeats=1)


def test_a_guard_continues_from_its_bytes():
    first = Guard(secret=b"s")
    for _ in range(3):
        first.call("t", at=0.0)
    second = Guard(secret=b"s", state=first.dump())

    assert second.call("t", call_id="another", at=1.0).decision == "stop"


def test_it_needs_no_django():
    code = "import sys; from detection.engine import Guard; Guard().call('t'); assert 'django' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
