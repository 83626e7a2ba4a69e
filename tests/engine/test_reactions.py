"""Ladders: which rung a detection takes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from detection.engine import Guard, interventions
from detection.engine.policy import ENVIRONMENT, ToolRule, environment_override, resolve
from tests.engine.play import Player


def decisions(player, calls=6, tool="t"):
    return [player.call(tool, {}).verdict.decision for _ in range(calls)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("break", ["stop", "stop", "stop"]),
        ("block_then_stop", ["block", "block", "block", "block", "stop", "stop"]),
        ("chance_then_break", ["block", "stop", "stop"]),
        ("graduated", ["warn", "warn", "stop"]),
        ("warn", ["warn", "warn", "warn"]),
        ("ask", ["hold", "hold", "hold"]),
        ("observe", ["allow", "allow", "allow"]),
        (["block"], ["block", "block", "block"]),
    ],
)
def test_successive_detections_walk_down_and_the_last_rung_repeats(mode, expected):
    assert decisions(Player("proxy", mode=mode), 3 + len(expected)) == ["allow"] * 3 + expected


def test_the_fourth_identical_call_is_blocked_and_the_eighth_stops_the_run():
    player = Player()
    verdicts = [player.step("t", {}, "0 hits") for _ in range(9)]

    assert [one.decision for one in verdicts] == ["allow"] * 2 + ["warn"] + ["block"] * 4 + ["stop"] * 2
    assert [one.rung for one in verdicts[3:]] == ["chance", "block", "block", "block", "stop", "stop"]


def test_a_different_call_after_the_first_block_gives_the_whole_ladder_again():
    player = Player()
    assert decisions(player, 4)[-1] == "block"
    player.call("other", {})

    assert decisions(player, 8) == ["allow"] * 3 + ["block"] * 4 + ["stop"]


def test_an_agent_that_ignores_the_blocks_does_not_start_over_with_a_different_call():
    player = Player()
    assert decisions(player, 6)[3:] == ["block"] * 3
    player.call("other", {})

    assert decisions(player, 5) == ["allow"] * 3 + ["block", "stop"]


def test_the_other_detectors_warn_twice_then_block_then_stop():
    player = Player()
    verdicts = [player.step("mail", {"user": f"u{i}"}, "denied", is_error=True) for i in range(14)]
    reactions = [one.rung for one in verdicts if one.rung]

    assert reactions[:4] == ["warn", "warn", "block", "stop"]
    assert {one.finding.kind for one in verdicts if one.rung} == {"outcome"}


def test_proxy_and_a_mode_in_the_environment_stop_the_fourth_call():
    assert decisions(Player("proxy"), 4)[-1] == "stop"
    policy = resolve([(ENVIRONMENT, environment_override({"TOOL_LOOP_MODE": "break"}))])
    guard = Guard(policy)

    assert [guard.call("t", {}, at=float(i)).decision for i in range(4)] == ["allow"] * 3 + ["stop"]


def test_a_warning_has_time_to_work_before_the_next_rung():
    assert decisions(Player(mode="graduated"), 12) == ["allow"] * 3 + [
        "warn", "allow", "allow", "warn", "allow", "allow", "block", "stop", "stop",
    ]  # fmt: skip


def test_the_gap_between_rungs_holds_between_detectors():
    decisions = Player().letters("ab" * 7, answers=True)

    assert [at for at, one in enumerate(decisions, 1) if one == "warn"] == [6, 9]
    assert decisions[11:] == ["block", "stop", "stop"]


def test_a_silent_detection_is_still_recorded():
    player = Player(mode="graduated")
    verdict = [player.call("t", {}) for _ in range(5)][-1].verdict

    assert (verdict.decision, verdict.rung, verdict.message) == ("allow", None, "")
    assert verdict.findings[0].count == 5


def test_a_different_call_takes_the_chance_and_rearms_it():
    player = Player("proxy", mode="chance")
    assert decisions(player, 4)[-1] == "block"
    player.call("other", {})

    assert decisions(player, 5) == ["allow", "allow", "allow", "block", "stop"]


SAME_CALL = {
    "as many as are young enough": ({}, {}),
    "fewer and fewer": ({"mode": ["chance", "block", "stop"]}, {"slower": 7}),
    "within a window": ({"repeat_scope": "window", "window_calls": 3, "max_repeats": 3}, {}),
}


@pytest.mark.parametrize(("values", "pace"), SAME_CALL.values(), ids=SAME_CALL)
def test_the_same_call_never_gets_a_new_chance_whatever_its_count(values, pace):
    player = Player("proxy", **{"mode": "chance", "ttl_seconds": 120, **values})
    given = [
        player.call("t", {}, gap=pace.get("slower", 0) * (number % 3) + (40 if not pace else 20)).verdict
        for number in range(40)
    ]
    assert [one.rung for one in given].count("chance") == 1
    assert given[-1].decision == "stop"


@pytest.mark.parametrize("mode", ["chance", "block_then_stop"])
def test_a_slow_call_with_a_changed_result_gets_no_new_chance(mode):
    player = Player(mode=mode)
    for _ in range(2):
        player.step("t", {}, "0 hits")
    player.call("t", {}, call_id="late")
    assert player.call("t", {}).verdict.rung == "chance"
    player.answer("1 hit", call_id="late")
    reactions = [player.step("t", {}, "1 hit", gap=25).rung for _ in range(60)]
    reactions = [one for one in reactions if one not in (None, "warn")]
    assert "chance" not in reactions
    assert reactions[-1] == "stop"


@pytest.mark.parametrize("gap", [2, 40])
def test_a_really_different_call_rearms_the_chance_of_a_slow_loop_too(gap):
    player = Player("proxy", mode="chance", ttl_seconds=600)
    for _ in range(3):
        assert [player.call("t", {}, gap=gap).verdict.rung for _ in range(4)][-1] == "chance"
        player.call("other", {}, gap=gap)


def test_an_exempt_call_between_is_not_another_way():
    player = Player("proxy", [ToolRule("clock", "exempt")], mode="chance", ttl_seconds=120)
    given = []
    for _ in range(8):
        given.append(player.call("t", {}, gap=40).verdict.rung)
        player.call("clock", {}, gap=0)
    assert given.count("chance") == 1
    assert given[-1] == "stop"


@pytest.mark.parametrize(
    ("values", "rounds"),
    [
        ({"mode": "chance"}, [["chance"] * 3, ["stop"] * 3]),
        ({"mode": ["warn", "block", "stop"]}, [["warn"] * 3, ["block"] * 3, ["stop"] * 3]),
        ({"mode": ["delay", "finish", "stop"]}, [["delay"] * 3, ["finish"] * 3, ["stop"] * 3]),
        ({"mode": ["ask", "stop"]}, [["ask"] * 3, ["stop"] * 3]),
        ({"mode": "block_then_stop"}, [["chance"] * 3, *[["block"] * 3] * 3, ["stop"] * 3]),
        ({"mode": "chance", "escalation_scope": "session"}, [["chance"] * 3, ["stop"] * 3]),
    ],
)
def test_copies_in_one_round_are_one_step_of_the_ladder(values, rounds):
    player = Player("proxy", **values)
    for number in range(3):
        player.call("t", {}, round=f"r-{number}")
    given = [
        [player.call("t", {}, round=f"s-{number}", gap=0).verdict for _ in range(3)] for number in range(5)
    ]
    assert [[one.rung for one in copies] for copies in given][: len(rounds)] == rounds
    for copies in given:
        assert len({(one.decision, one.detection_number, one.pause_seconds) for one in copies}) == 1


def test_the_copies_of_a_stop_after_a_chance_all_say_what_was_tried():
    player = Player("proxy", mode="chance")
    for number in range(4):
        player.call("t", {}, round=f"r-{number}")
    stops = [player.call("t", {}, round="last").verdict for _ in range(2)]
    assert [one.decision for one in stops] == ["stop", "stop"]
    assert all("again after guidance" in one.message for one in stops)


def test_different_loops_of_one_round_are_one_step_of_the_session():
    player = Player("balanced", mode=["warn", "stop"])
    for tool in "abc":
        for _ in range(2):
            player.call(tool, {})
    assert [player.call(tool, {}, round="r").verdict.decision for tool in "abc"] == ["warn"] * 3
    assert player.call("a", {}, round="s").verdict.decision == "stop"


def test_calls_without_a_round_are_steps_of_their_own():
    player = Player("proxy", mode="chance")
    assert decisions(player, 6)[3:] == ["block", "stop", "stop"]


def test_another_loop_starts_at_the_bottom():
    player = Player("proxy", mode="chance")
    assert decisions(player, 5)[-1] == "stop"
    assert decisions(player, 4, "u")[-1] == "block"


def test_over_the_session_unrelated_detections_add_up():
    player = Player("balanced")
    assert decisions(player, 3)[-1] == "warn"
    assert decisions(player, 3, "u")[-1] == "warn"
    assert decisions(player, 3, "v")[-1] == "stop"


def test_after_long_clean_work_a_ladder_starts_over():
    player = Player(mode="graduated")
    decisions(player, 7)
    for i in range(40):
        player.step("work", {"n": i}, f"new {i}")
    verdicts = [player.call("t", {}).verdict for _ in range(4)]

    assert (verdicts[-1].decision, verdicts[-1].detection_number) == ("warn", 1)


def test_a_full_reset_forgets_every_counter():
    player = Player("interactive")
    decisions(player, 3)
    decisions(player, 3, "u")
    held = player.call("t", {}).verdict
    assert held.decision == "hold"
    interventions.apply_choice(player.state, held.finding.calls_digest, "skip")

    assert player.call("u", {}).verdict.decision == "allow"


@pytest.mark.parametrize("choice", ["skip", "allow_once", "raise"])
def test_a_held_call_stays_on_hold_until_it_is_answered(choice):
    player = Player("interactive")
    held = [player.call("t", {}) for _ in range(7)][3:]
    assert [one.verdict.decision for one in held] == ["hold"] * 4
    assert len({one.verdict.finding.calls_digest for one in held}) == 1
    interventions.apply_choice(player.state, held[0].verdict.finding.calls_digest, choice, by=2)

    free = 5 if choice == "raise" else 3
    assert decisions(player, free + 2) == ["allow"] * free + ["hold"] * 2


def test_the_pause_of_a_session_limit_ends():
    player = Player(
        session_budget_enabled=True,
        session_budget_max_calls=2,
        session_budget_ladder=["delay"],
        delay_seconds=60,
    )
    calls = [player.call("work", {"n": n}, gap=gap).verdict for n, gap in enumerate((2, 2, 61, 2, 2))]
    assert [(one.decision, one.pause_seconds) for one in calls] == [
        ("allow", 0), ("block", 60), ("allow", 0), ("block", 120), ("block", 240),
    ]  # fmt: skip
    assert interventions.run_after_pause(player.state, player.seq)
    assert player.call("work", {"n": 5}, gap=500).verdict.pause_seconds == 480


@pytest.mark.parametrize(
    ("values", "run", "is_reused"),
    [({}, None, True), ({"counting_scope": "run"}, "b", False), ({"result_aware": False}, None, False)],
    ids=["nothing", "another run without a result", "unknown effects"],
)  # fmt: skip
def test_an_answer_is_given_again_only_if_nothing_may_have_changed_since(values, run, is_reused):
    player = Player(mode=["reuse"], **values)
    for _ in range(3):
        player.step("read_file", {"path": "a"}, "three notes", run="a")
        latest = player.seq
    if run:
        player.call("write_file", {"path": "a", "text": "b"}, run=run)
    verdict = player.call("read_file", {"path": "a"}, run="a").verdict
    assert verdict.rung == "reuse"
    assert (verdict.ending, verdict.reuses) == (("reuse", latest) if is_reused else (None, None))


def edits(player, calls, *, tool="edit_file", text="Error: old text not found"):
    """The same edit with one more space each time, which fails each time."""
    given = []
    for number in range(calls):
        arguments = {"path": "a.py", "old": "def total():" + " " * number, "new": "def total(x):"}
        verdict = player.step(tool, arguments, text, is_error=True)
        given.append((verdict.decision, verdict.finding.kind if verdict.rung else ""))
    return given


def test_a_warning_about_similar_calls_does_not_hide_what_stops_them():
    given = edits(Player(), 20)
    assert [place for place, (decision, _) in enumerate(given, 1) if decision == "warn"] == [4, 7]
    assert [decision for decision, _ in given[9:]] == ["block", *["stop"] * 10]
    assert {kind for _, kind in given if kind} == {"outcome"}


def test_each_detector_climbs_its_own_ladder_at_its_own_pace():
    player = Player(outcome_ladder="warn", similar_ladder=["warn", "block", "stop"])
    given = edits(player, 20)
    assert next(one for one in given if one[0] in ("block", "stop")) == ("block", "similar")
    assert given[3] == ("warn", "outcome")


def test_a_loop_that_two_detectors_find_is_one_finding():
    player = Player()
    for number in range(12):
        arguments = {"path": "a.py", "old": "def total():" + " " * number}
        call = player.call("edit_file", arguments).verdict
        verdicts = [call, player.answer("Error: old text not found", is_error=True).verdict]
        assert all(len(one.findings) <= 1 for one in verdicts)


def test_a_spent_limit_is_no_part_of_the_loop_in_its_calls():
    player = Player(budget_max_calls=10, budget_ladder="warn")
    verdicts = []
    for number in range(10):
        arguments = {"path": "a.py", "old": "x" + " " * number}
        verdicts.append(player.call("edit_file", arguments).verdict)
        player.answer("Error: old text not found", is_error=True)
    assert {one.kind for one in verdicts[-1].findings} == {"budget", "outcome"}
    assert verdicts[-1].decision == "block"


def test_detections_that_share_one_ladder_take_one_step_per_call():
    player = Player(escalation_scope="session", graduated_rungs=["warn", "warn", "warn", "stop"])
    numbers = []
    for number in range(9):
        verdict = player.step("edit_file", {"old": "x" + " " * number}, "Error: not found", is_error=True)
        numbers += [verdict.detection_number] if verdict.rung else []
    assert numbers == [*range(1, len(numbers) + 1)]


def broken(player, calls, tools=None):
    """A sweep through tools of which none is connected; the reactions by call, from 1."""
    said = {}
    for number in range(1, calls + 1):
        name = tools[number % len(tools)] if tools else f"tool_{number}"
        verdict = player.step(name, {"of": number}, "not connected", is_error=True)
        if verdict.rung:
            said[number] = verdict.decision
    return said


def test_a_loop_of_new_calls_is_never_silent_for_long():
    player = Player()
    said = broken(player, 45)
    limit = player.policy.get("stagnation_max_calls")
    assert min(said) <= limit + 1
    places = sorted(said)
    assert all(later <= max(earlier + 3, 2 * earlier) for earlier, later in pairwise(places))


def test_far_beyond_the_limit_a_new_call_is_blocked_and_the_next_one_may_show_another_way():
    player = Player()
    said = broken(player, 22)
    assert said[22] == "block"
    assert "block" not in [said[place] for place in said if place < 20]
    verdict = player.step("another_tool", {}, "connected: 17 rows")
    assert verdict.decision == "allow"
    assert [player.step(f"work_{n}", {"n": n}, f"row {n * n}").decision for n in range(6)] == ["allow"] * 6


def test_a_new_write_or_message_is_not_blocked_however_long_nothing_was_new():
    player = Player()
    broken(player, 21)
    assert (
        player.call("write_file", {"path": "report.md", "content": "what fails"}).verdict.decision == "allow"
    )
    assert player.call("send_message", {"text": "nothing is connected"}).verdict.decision == "allow"


def test_a_loop_that_was_warned_about_is_not_reminded_at_every_result():
    said = broken(Player(), 17)
    assert len(said) <= 3


def test_one_call_with_other_work_in_between_is_advised_against_and_never_blocked():
    player = Player()
    for number in range(30):
        verdict = player.step("get_status", {"of": "build"}, "state: green, 3 workers")
        assert verdict.decision in ("allow", "warn")
        player.step("read_page", {"page": f"{number} {number * number}"}, f"text {number * 31} of it")


@pytest.mark.parametrize("values", [{"once_per_round": False}, {"identity": "raw"}])
def test_settings_that_count_as_known_systems_do_keep_one_ladder_for_each_loop(values):
    given = edits(Player(**values), 20)
    assert "warn" in dict(given)
    assert not {"block", "stop"} & {decision for decision, _ in given}


@pytest.mark.parametrize("mode", ["observe", "warn"])
def test_identical_calls_that_a_person_lets_run_are_stopped_by_nothing_else(mode):
    player = Player(mode=mode)
    decisions = {player.step("search", {"q": "a"}, "0 hits").decision for _ in range(40)}
    assert decisions <= {"allow", "warn"}
