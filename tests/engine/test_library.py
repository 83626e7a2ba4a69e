"""The engine as other programs use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from detection.engine import Guard
from detection.engine.policy import PolicyError, ToolRule
from detection.engine.snapshot import SnapshotVersionError


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
    guard = Guard("proxy", max_repeats=2, on_detection=lambda verdict: "retry")  # type: ignore[arg-type, return-value]
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


def test_a_command_in_another_directory_is_another_call_and_its_result_is_found():
    guard = Guard("standard")
    for number, cwd in enumerate(["/a", "/b", "/b"]):
        guard.call("bash", {"command": "git status"}, at=float(number), cwd=cwd)
        guard.result(
            "", "Up to date.", tool="bash", arguments={"command": "git status"}, at=float(number), cwd=cwd
        )
    assert guard.key("bash", {"command": "git status"}, cwd="/a") != guard.key(
        "bash", {"command": "git status"}, cwd="/b"
    )
    assert guard.count("bash", {"command": "git status"}, at=4.0, cwd="/b") == 2
    assert guard.count("bash", {"command": "git status"}, at=4.0) == 0


def test_it_needs_no_django():
    code = "import sys; from detection.engine import Guard; Guard().call('t'); assert 'django' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


# State


@pytest.mark.parametrize("forget", [False, True])
def test_numbers_of_calls_go_on_with_the_state(forget):
    first = Guard("proxy")
    for at in range(2):
        first.call("t", {"q": 1}, at=float(at))
    if forget:
        first.clear()
    second = Guard("proxy", state=first.dump())
    decisions = [second.call("t", {"q": 1}, at=2.0 + at).decision for at in range(4)]

    # A resent call would get the verdict that it got before, and never count.
    assert decisions == (["allow"] * 3 + ["stop"] if forget else ["allow", "stop", "stop", "stop"])


def test_a_result_of_a_call_before_the_dump_is_that_of_its_number():
    first = Guard()
    first.call("read", {"path": "a"}, at=0.0)
    second = Guard(state=first.dump())
    second.call("read", {"path": "b"}, at=1.0)

    assert second.result("call-1", "text", at=2.0).decision == "allow"
    second.result("call-2", "other", at=2.0)
    third = Guard(state=second.dump())
    third.call("read", {"path": "b"}, at=3.0)
    assert third.count("read", {"path": "b"}, at=3.0) == 2


def test_messages_are_numbered_too():
    first = Guard(attended=False)
    first.call("t", at=0.0)
    first.message("go on", at=1.0)
    second = Guard(attended=False, state=first.dump())
    second.call("t", at=2.0)

    assert second.call("t", call_id="call-3", at=2.0).decision == "allow"
    assert second.count("t", at=2.0) == 2, "the call after the message was the third event"


@pytest.mark.parametrize("damaged", [b"{}", b"x {}", b"12", b"12 {}", b"-1 {}"])
def test_what_is_no_state_is_rejected(damaged):
    with pytest.raises(SnapshotVersionError):
        Guard(state=damaged)


# Operations


def test_a_disabled_guard_judges_and_counts_nothing_until_it_is_enabled():
    guard = Guard("proxy")
    calls(guard, 3)
    assert guard.is_enabled
    guard.disable()

    assert not guard.is_enabled
    assert [one.decision for one in calls(guard, 5)] == ["allow"] * 5
    assert guard.count("t", {"q": 1}, at=2.0) == 3
    guard.enable()
    assert guard.call("t", {"q": 1}, at=3.0).decision == "stop"
    assert guard.is_enabled


def test_a_guard_that_begins_disabled_may_be_enabled_and_keeps_its_settings_and_rules():
    rule = ToolRule("look_*", values={"max_repeats": 2})
    guard = Guard("proxy", enabled=False, max_repeats=3, rules=[rule])
    assert not guard.is_enabled
    guard.enable()

    assert [one.decision for one in calls(guard, 3)] == ["allow", "allow", "stop"]
    assert [guard.call("look_up", at=9.0).decision for _ in range(2)] == ["allow", "stop"]


COUNTS = [
    ("proxy", {}, [1, 2, 3, 0]),
    ("interactive", {}, [1, 2, 3, 3]),
    ("balanced", {"max_repeats": 9}, [1, 2, 3, 3]),
    ("standard", {}, [1, 2, 3, 0]),
]


@pytest.mark.parametrize(("preset", "values", "expected"), COUNTS)
def test_the_count_of_a_call_is_what_its_limit_is_compared_with(preset, values, expected):
    guard = Guard(preset, **values)
    seen = [guard.count("t", {"a": 1, "b": 2}, at=0.0)]
    for at in range(3):
        guard.call("t", {"a": 1, "b": 2}, at=float(at))
        seen.append(guard.count("t", '{"b": 2, "a": 1}', at=float(at)))
    before = guard.dump()
    guard.call("other", at=3.0)
    seen.append(guard.count(key=guard.key("t", {"a": 1, "b": 2}), at=3.0))

    assert seen == [0, *expected]
    assert guard.count("t", {"a": 2}, at=3.0) == 0
    guard = Guard(preset, state=before, **values)
    assert guard.count("t", {"a": 1, "b": 2}, at=2.0) == 3
    assert guard.dump() == before, "asking changes nothing"
    guard.clear()
    assert guard.count("t", {"a": 1, "b": 2}, at=3.0) == 0


@pytest.mark.parametrize(("ttl_from", "expected"), [("previous", 3), ("entry", 2), ("never", 3)])
def test_expired_calls_do_not_count(ttl_from, expected):
    guard = Guard("proxy", max_repeats=9, ttl_seconds=10, ttl_from=ttl_from)
    for at in (0.0, 6.0, 12.0):
        guard.call("t", at=at)

    assert guard.count("t", at=13.0) == expected
    assert guard.count("t", at=40.0) == (3 if ttl_from == "never" else 0)


def test_the_key_of_a_finding_is_the_key_of_its_call():
    guard = Guard("proxy", secret=b"s")
    verdict = calls(guard, 4)[-1]

    assert verdict.finding.call_keys == (guard.key("t", {"q": 1}),)
    assert guard.key("t", {"q": 1}) != Guard("proxy").key("t", {"q": 1})
    assert Guard("proxy", identity="tool").key("t", {"q": 1}) == Guard("proxy", identity="tool").key("t")


def test_runs_and_tools_that_are_not_judged_have_counts_of_their_own():
    guard = Guard("balanced", max_repeats=9)
    for run in ("a", "a", "b"):
        guard.call("t", run=run, at=0.0)
        guard.call("think", {"thought": "so"}, run=run, at=0.0)

    assert [guard.count("t", run=run, at=0.0) for run in ("a", "b", "c", None)] == [2, 1, 0, 0]
    assert guard.count("think", {"thought": "so"}, run="a", at=0.0) == 0
