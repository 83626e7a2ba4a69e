"""Looks at what others bring about: waiting has limits of its own, and a person may ask for the same again."""

from __future__ import annotations

import pytest

from detection.engine import Guard
from detection.engine.calls import Verdict

LOOPS = ["allow", "allow", "warn", "block"]


def play(tool, arguments, answer, times, *, pause=2.0, is_error=False, messages=False) -> list[Verdict]:
    """The stricter verdict of each identical call and its answer."""
    guard, verdicts = Guard("standard"), []
    for number in range(times):
        at = 1000 + number * pause
        if messages:
            guard.message("and now?", at=at)
        verdict = guard.call(tool, arguments, call_id=f"c{number}", at=at)
        if verdict.decision in ("allow", "warn"):
            after = guard.result(f"c{number}", answer, is_error, at=at)
            verdict = verdict if verdict.decision != "allow" else after
        verdicts.append(verdict)
    return verdicts


def decisions(*arguments, **options):
    return [one.decision for one in play(*arguments, **options)]


WAITING = [
    ("get_export", {"id": 7}, '{"id": 7, "state": "QUEUED"}'),
    ("fetch_report", {"id": 7}, "Your report is being generated."),
    ("aws__describe_change_set", {"name": "x"}, '{"ChangeSetStatus": "CREATE_IN_PROGRESS"}'),
    ("bash", {"command": "gh pr checks 7"}, "unit\tpending\t0\thttps://x.example/1"),
    ("execute_bash", {"command": ""}, "compiling core"),
    ("send_keys", {"keys": ""}, "$ make"),
    ("wait_for_deploy", {"id": 7}, "nothing to report"),
    ("check_upload", {"id": 7}, "42 of 90 MB"),
]


@pytest.mark.parametrize(("tool", "arguments", "answer"), WAITING)
def test_waiting_is_advised_against_at_the_limit_of_polls(tool, arguments, answer):
    verdicts = play(tool, arguments, answer, 15)
    assert [one.decision for one in verdicts[:9]] == ["allow"] * 9
    assert "block" not in [one.decision for one in verdicts]
    warned = next(one for one in verdicts if one.decision == "warn")
    assert "Wait once" in warned.message
    assert "notified" in warned.message


def test_a_poll_without_an_end_is_blocked():
    assert decisions("get_export", {"id": 7}, '{"state": "queued"}', 20)[19] == "block"


def test_slow_looks_of_a_shell_are_not_blocked_in_the_first_half_hour():
    looks = play("bash", {"command": "gh pr checks 7"}, "unit  waits", 72, pause=25.0)
    assert {one.decision for one in looks} <= {"allow", "warn"}
    assert [one.decision for one in looks[:40]] == ["allow"] * 40


def test_a_command_that_sleeps_and_looks_at_what_stands_still_is_blocked_in_the_end():
    still = decisions("bash", {"command": "sleep 30; tail -3 etl.log"}, "loaded 400 rows", 50, pause=30.0)
    assert (still.index("warn"), still.index("block")) == (23, 48)
    waiting = decisions("bash", {"command": "sleep 30; tail -3 etl.log"}, "still loading", 60, pause=30.0)
    assert "block" not in waiting
    assert "warn" not in waiting[:40]


@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("bash", {"command": "cat build.log"}, "Loading data"),
        ("read_file", {"path": "jobs.json"}, '{"status": "pending"}'),
        ("get_export", {"id": 7}, '{"state": "finished"}'),
        ("type_check", {"path": "a.py"}, "3 hints"),
    ],
)
def test_looking_at_the_same_without_waiting_is_a_loop(tool, arguments, answer):
    assert decisions(tool, arguments, answer, 4) == LOOPS


@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("write_stdin", {"session_id": 2321, "chars": ""}, "No session found for 2321"),
        ("job_status", {"id": "j-9"}, "Unknown job: j-9"),
        ("check_upload", {"id": 7}, "Error: there is no upload 7"),
    ],
)
def test_what_does_not_exist_is_not_waited_for(tool, arguments, answer):
    verdicts = play(tool, arguments, answer, 4, is_error=None if answer.startswith("No session") else True)
    assert [one.decision for one in verdicts] == LOOPS
    assert "Wait" not in verdicts[3].message
    assert "may not exist" in verdicts[3].message


def test_what_is_done_is_no_longer_waited_for():
    guard = Guard("standard")
    for number, answer in enumerate(['{"state": "running"}'] * 6 + ['{"state": "done"}'] * 4):
        decision = guard.call("get_export", {"id": 7}, call_id=f"c{number}", at=number).decision
        guard.result(f"c{number}", answer, False, at=number)
        assert decision == ("block" if number == 9 else "warn" if number == 8 else "allow")


def test_a_write_that_is_queued_is_no_poll():
    assert decisions("start_import", {"file": "a"}, '{"status": "queued"}', 4) == LOOPS


@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("read", {"path": "HEARTBEAT.md"}, "# Keep empty"),
        ("run_report", {}, "12 rows"),
        ("add_note", {"a": 1}, "ok"),
    ],
)
def test_the_same_call_after_each_message_of_a_person_gets_one_piece_of_advice_at_most(
    tool, arguments, answer
):
    seen = decisions(tool, arguments, answer, 12, pause=15.0, messages=True)
    assert seen.count("warn") <= 1
    assert set(seen) <= {"allow", "warn"}


def test_a_call_that_fails_again_after_each_message_of_a_person_is_a_loop():
    assert decisions("run_report", {}, "Error: no such table", 4, is_error=True, messages=True) == LOOPS


def test_a_call_that_is_repeated_within_a_turn_is_a_loop():
    guard, seen = Guard("standard"), []
    for number in range(8):
        if number == 4:
            guard.message("and now?", at=number)
        seen.append(guard.call("run_report", {}, call_id=f"c{number}", at=number).decision)
        guard.result(f"c{number}", "12 rows", False, at=number)
    assert seen == LOOPS * 2
