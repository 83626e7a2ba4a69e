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

    assert decisions == ["allow", "allow", "warn", "block"]


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

    assert second.call("t", call_id="another", at=1.0).decision == "block"


def calls(guard, count):
    return [guard.call("t", {"q": 1}, at=float(i)) for i in range(count)]


def test_a_callback_may_let_a_detected_call_run_and_the_agent_then_reads_nothing():
    seen = []

    def allow(verdict):
        seen.append((verdict.rung, verdict.detection_number, verdict.finding.count))
        return "allow"

    verdicts = calls(Guard("balanced", on_detection=allow), 6)

    # The ladder continues; without the callback, the stop at the fifth call would have cleared it.
    assert seen == [("warn", 1, 3), ("warn", 2, 4), ("stop", 3, 5), ("stop", 4, 6)]
    assert {(one.decision, one.message) for one in verdicts} == {("allow", "")}
    assert [one.rung for one in verdicts] == [None, None, "warn", "warn", "stop", "stop"]


def test_a_callback_may_stop_where_the_ladder_warns():
    verdict = calls(Guard("balanced", on_detection=lambda verdict: "stop"), 3)[-1]

    assert (verdict.rung, verdict.decision) == ("warn", "stop")
    assert "Session stopped" in verdict.message


def test_a_callback_that_returns_nothing_changes_nothing():
    plain, watched = Guard("balanced"), Guard("balanced", on_detection=lambda verdict: None)

    assert [one.decision for one in calls(watched, 6)] == [one.decision for one in calls(plain, 6)]


def test_a_resent_call_gets_the_overruled_verdict_again():
    guard = Guard("proxy", max_repeats=2, on_detection=lambda verdict: "warn")
    guard.call("t", at=0.0)
    first = guard.call("t", call_id="again", at=1.0)
    second = guard.call("t", call_id="again", at=1.0)

    assert (first.decision, first.rung) == ("warn", "stop")
    assert (second.decision, second.rung, second.message) == ("warn", "stop", first.message)


def test_a_callback_cannot_invent_a_decision():
    guard = Guard("proxy", max_repeats=2, on_detection=lambda verdict: "retry")
    guard.call("t", at=0.0)
    with pytest.raises(ValueError, match="allow, warn, block, stop"):
        guard.call("t", at=1.0)


def test_clear_forgets_everything_that_was_counted():
    guard = Guard("proxy")
    calls(guard, 3)
    guard.clear()

    assert [one.decision for one in calls(guard, 4)] == ["allow", "allow", "allow", "stop"]


def test_a_cycle_names_its_tools_and_its_laps():
    guard = Guard("balanced")
    verdict = [guard.call(tool, at=float(i)) for i, tool in enumerate(("read", "edit") * 2)][-1]
    again = guard.call("edit", call_id="call-4", at=4.0)

    assert (verdict.finding.pattern, verdict.finding.laps) == (("read", "edit"), 2)
    assert (again.finding.pattern, again.finding.laps) == (("read", "edit"), 2)
    assert (verdict.rung, verdict.detection_number) == ("warn", 1)


def test_calls_may_be_compared_by_the_names_of_their_tools_alone():
    guard = Guard("proxy", identity="tool")

    assert [guard.call("t", {"q": i}, at=float(i)).decision for i in range(4)] == ["allow"] * 3 + ["stop"]
    assert Guard("proxy", identity="tool").call("t2", {"q": 1}).decision == "allow"


def test_it_needs_no_django():
    code = "import sys; from detection.engine import Guard; Guard().call('t'); assert 'django' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
