"""What each detector finds, and what it leaves alone, in small plain runs under the defaults."""

from __future__ import annotations

from typing import Any

import pytest

from detection.engine.policy import ToolRule
from tests.engine.play import Player


def kinds(verdict):
    return [finding.kind for finding in verdict.findings]


class TestRepeat:
    def test_warns_at_the_third_identical_result_and_blocks_the_fourth_call(self):
        assert Player().letters("aaaa", answers=True) == ["allow", "allow", "warn", "block"]

    def test_blocks_the_fourth_call_of_a_client_that_never_sends_results(self):
        assert Player().letters("aaaa") == ["allow", "allow", "allow", "block"]

    def test_another_call_between_starts_the_count_again(self):
        assert set(Player().letters("aaabaaab")) == {"allow"}

    def test_a_changing_answer_is_progress_until_the_tenth(self):
        player = Player()
        decisions = [player.step("t", {"k": 1}, f"page {letter}").decision for letter in "abcdefghijkl"]

        assert decisions[:9] == ["allow"] * 9
        assert decisions[9] == "warn"
        assert "stop" not in decisions

    def test_going_back_to_an_old_answer_is_a_change_too(self):
        player = Player(scattered_repeats=0)
        answers = ["v1", "v2", "v1", "v2", "v1", "v1"]
        assert [player.step("t", {}, answer).decision for answer in answers] == ["allow"] * 6
        assert player.step("t", {}, "v1").decision == "warn"

    def test_changing_errors_are_no_progress(self):
        player = Player()
        decisions = [player.step("t", {}, f"error {i} at {i}", is_error=True).decision for i in range(4)]

        assert decisions[-1] == "block"

    def test_a_slow_poll_is_no_loop(self):
        player = Player()
        assert {player.step("t", {}, "running", gap=30).decision for _ in range(10)} == {"allow"}

    def test_a_slow_error_is_not(self):
        player = Player()
        assert player.step("t", {}, "down", is_error=True, gap=30).decision == "allow"
        assert "block" in {player.step("t", {}, "down", is_error=True, gap=30).decision for _ in range(4)}

    def test_a_declared_poll_has_its_own_limits(self):
        player = Player(rules=[ToolRule("t", tool_class="poll")])
        decisions = [player.step("t", {}, "running").decision for _ in range(20)]

        assert decisions.index("warn") == 9
        assert decisions[-1] == "block"

    def test_age_counts_from_the_previous_call_so_that_slow_loops_stay_visible(self):
        player = Player(slow_gap_seconds=600)
        assert [player.call("t", {}, gap=110).verdict.decision for _ in range(4)][-1] == "block"

    def test_a_pause_longer_than_the_time_to_live_forgets(self):
        player = Player(slow_gap_seconds=600)
        assert {player.call("t", {}, gap=121).verdict.decision for _ in range(8)} == {"allow"}

    def test_by_entry_one_exactly_as_old_as_the_time_to_live_still_counts(self):
        player = Player("proxy")
        decisions = [player.call("t", {}, gap=gap).verdict.decision for gap in (0, 40, 40, 40, 40, 81)]

        assert decisions == ["allow", "allow", "allow", "stop", "stop", "allow"]

    def test_a_blocked_call_is_recorded_so_that_hammering_does_not_age_it_out(self):
        player = Player("proxy")
        decisions = [player.call("t", {}, gap=10).verdict.decision for _ in range(30)]

        assert set(decisions[3:]) == {"stop"}

    def test_the_same_answer_scattered_among_other_work_is_worth_a_warning(self):
        player = Player()
        decisions = []
        for i in range(5):
            decisions.append(player.step("look", {"k": 1}, "the same").decision)
            decisions += [
                player.step("read", {"n": 2 * i + j}, f"new {2 * i + j}").decision for j in range(2)
            ]

        assert set(decisions) == {"allow", "warn"}

    def test_a_test_run_between_changes_is_work(self):
        player = Player()
        decisions = []
        for i in range(6):
            decisions.append(
                player.step("bash", {"command": "pytest -q"}, f"{9 - i} failed", is_error=True).decision
            )
            decisions.append(player.step("edit_file", {"n": i}, "ok").decision)

        assert set(decisions) == {"allow"}


class TestCycle:
    def test_three_identical_laps_warn(self):
        assert Player(stagnation_enabled=False).letters("ababab", answers=True)[-1] == "warn"

    def test_without_results_it_takes_four(self):
        assert Player().letters("abababab").index("warn") == 7

    def test_laps_with_changing_answers_are_left_alone(self):
        player = Player()
        decisions = {player.step("t", {"k": "ab"[i % 2]}, f"answer {i}").decision for i in range(12)}
        assert decisions == {"allow"}

    def test_one_identity_wherever_the_loop_is_met(self):
        one, other = Player(stagnation_enabled=False), Player(stagnation_enabled=False)
        first = [one.step("t", {"k": k}, k) for k in "ababab"][-1]
        second = [other.step("t", {"k": k}, k) for k in "bababa"][-1]

        assert first.finding.calls_digest == second.finding.calls_digest
        assert first.finding.period == 2

    def test_it_walks_its_ladder_with_gaps(self):
        decisions = Player(stagnation_enabled=False, scattered_repeats=0, scattered_run_repeats=0).letters(
            "ab" * 8, answers=True
        )

        assert [i for i, one in enumerate(decisions) if one == "warn"] == [5, 8]
        assert decisions[11:13] == ["block", "stop"]


class TestSimilar:
    def test_variations_that_bring_nothing_new_warn_at_the_sixth(self):
        player = Player(outcome_enabled=False, stagnation_enabled=False)
        words = ["one", "two", "three", "four", "five", "six"]
        text = "how to reset the password of a user account on the server {}"
        player.step("list_all", {}, "nothing found here")
        decisions = [
            player.step("search", {"q": text.format(w)}, "nothing found here").decision for w in words
        ]

        assert decisions == ["allow"] * 5 + ["warn"]

    def test_pages_are_different_values(self):
        player = Player(outcome_enabled=False, stagnation_enabled=False)
        player.step("list_all", {}, "same")
        assert {player.step("search", {"q": "x", "page": i}, "same").decision for i in range(9)} == {"allow"}

    def test_variations_that_bring_something_new_are_work(self):
        player = Player()
        text = "select name from users where the identifier of the user equals {}"
        assert {player.step("sql", {"q": text.format(i)}, f"row {i}").decision for i in range(12)} == {
            "allow"
        }


class TestOutcome:
    def test_one_error_for_different_calls_warns_at_the_fourth(self):
        player = Player()
        decisions = [
            player.step("search", {"q": f"try {i}"}, "401 unauthorised", is_error=True).decision
            for i in range(4)
        ]

        assert decisions == ["allow", "allow", "allow", "warn"]

    def test_in_the_end_the_tool_is_stopped(self):
        player = Player()
        decisions = [
            player.step("book", {"slot": f"t{i}"}, "404 no calendar", is_error=True).decision
            for i in range(12)
        ]

        assert "stop" in decisions

    def test_a_shell_is_nudged_and_never_stopped(self):
        player = Player()
        decisions = {
            player.step("bash", {"command": f"grep -rn key{i} etc"}, "no such thing", is_error=True).decision
            for i in range(25)
        }

        assert decisions == {"allow", "warn"}

    @pytest.mark.parametrize("answer", ["", "ok", "[]", "done"])
    def test_empty_answers_and_acknowledgements_are_no_evidence(self, answer):
        player = Player()
        assert {player.step("touch_up", {"file": i}, answer).decision for i in range(20)} == {"allow"}

    def test_a_successful_change_ends_a_series(self):
        player = Player()
        for i in range(3):
            player.step("deploy", {"n": i}, "quota exceeded", is_error=True)
        player.step("edit_file", {"quota": 2}, "ok")

        assert player.step("deploy", {"n": 9}, "quota exceeded", is_error=True).decision == "allow"


class TestStagnation:
    def test_a_sweep_that_starts_over_is_seen(self):
        player = Player()
        decisions = [player.step("read", {"page": i % 9}, f"page {i % 9}").decision for i in range(16)]

        assert decisions.index("warn") == 13
        assert decisions[:13] == ["allow"] * 13

    def test_a_new_result_ends_it(self):
        player = Player(scattered_repeats=0)
        for i in range(30):
            assert player.step("read", {"k": i % 3}, f"{i % 3}").decision == "allow"
            assert player.step("other", {"n": i}, f"row {i}").decision == "allow"
            if i > 2:
                break

    def test_a_change_that_brings_something_new_ends_it(self):
        player = Player(scattered_repeats=0, scattered_run_repeats=0)
        decisions = set()
        for i in range(8):
            decisions.add(player.step("read", {"k": 1}, "x").decision)
            decisions.add(player.step("read", {"k": 2}, "y").decision)
            decisions.add(player.step("write_file", {"n": i}, "ok").decision)

        assert decisions == {"allow"}

    def test_errors_in_a_row_are_never_progress(self):
        player = Player()
        decisions = [
            player.step("sql", {"q": f"q{i}"}, f"syntax problem number {i * 77}", is_error=True).decision
            for i in range(9)
        ]

        assert decisions.index("warn") == 8

    def test_a_client_without_results_is_judged_by_keys_at_twice_the_limit(self):
        player = Player(cycle_enabled=False)
        decisions = [player.call("t", {"k": k}).verdict.decision for k in "abcdefg" + "abcdefgabcd"]

        assert decisions.index("warn") == 16


class TestBudget:
    def test_calls_end_at_the_hard_limit(self):
        player = Player(budget_max_calls=5)
        decisions = [player.step("t", {"n": i}, f"r{i}").decision for i in range(6)]

        assert decisions == ["allow"] * 4 + ["stop", "stop"]

    def test_the_soft_round_limit_lets_productive_work_go_on(self):
        player = Player(budget_max_rounds=30)
        verdicts = [player.step("t", {"n": i}, f"r{i}") for i in range(60)]
        assert {one.decision for one in verdicts} == {"allow"}
        assert verdicts[-1].meter.kind != "budget"

    def test_operators_get_one_notice_that_the_agent_never_sees(self):
        player = Player("justified", budget_max_rounds=11)
        verdicts = [player.call("t", {"n": i}).verdict for i in range(10)]
        notices = [one for one in verdicts if one.findings]

        assert len(notices) == 1
        assert notices[0].decision == "allow"
        assert notices[0].finding.detail["notice"]
        assert notices[0].message == ""

    @pytest.mark.parametrize(
        ("limit", "spent"),
        [("budget_max_tokens", {"tokens": 40}), ("budget_max_cost_usd", {"cost_usd": 0.05})],
    )
    def test_tokens_and_money_count(self, limit, spent):
        values: dict[str, Any] = {limit: 100 if "tokens" in spent else 0.12}
        player = Player(**values)
        decisions = [player.call("t", {"n": i}, **spent).verdict.decision for i in range(3)]

        assert decisions == ["allow", "allow", "stop"]

    def test_the_reaction_depends_on_who_is_there(self):
        def last(**values):
            player = Player(budget_max_calls=2, **values)
            player.call("t", {"n": 1})
            return player.call("t", {"n": 2}).verdict.rung

        assert last() == "stop"
        assert last(attended=True) == "ask"
        assert last(judge_available=True, attended=True) == "judge"

    def test_a_new_run_has_a_budget_of_its_own(self):
        player = Player(budget_max_calls=3)
        decisions = [player.call("t", {"n": i}, run=f"r{i // 2}").verdict.decision for i in range(8)]

        assert set(decisions) == {"allow"}


def test_evidence_is_in_order_of_the_calls_although_results_arrive_in_another():
    player = Player("similarity")
    for number, reply in ((0, 0), (1, None), (2, 2), (3, 1)):
        player.call("lookup", {"page": number}, call_id=f"call-{number}")
        if reply is not None:
            step = player.answer("three rows found", call_id=f"call-{reply}")
    found = [finding for finding in step.verdict.findings if finding.kind == "outcome"]
    assert [(finding.seqs, finding.first_seq) for finding in found] == [((0, 1, 2), 0)]


def test_a_cycle_of_changes_begins_with_the_call_that_the_next_one_undid():
    player = Player()
    player.call("read_file", {"path": "a.py"})
    player.answer("x = 0")
    for number in range(8):
        step = player.call("edit_file", {"path": "a.py", "text": f"x = {number % 2}"})
        player.answer("ok")
    cycle = next(finding for finding in step.verdict.findings if finding.kind == "cycle")
    assert (cycle.count, cycle.seqs, cycle.first_seq) == (3, tuple(range(1, 9)), 1)


def test_one_loop_is_one_finding_however_many_detectors_see_it():
    player = Player()
    verdict = [player.step("t", {}, "the same failure", is_error=True) for _ in range(4)][-1]

    assert kinds(verdict) == ["repeat"]


def test_a_detector_that_raises_is_skipped_and_named():
    player = Player()
    run = player.state.run("")
    run.detectors["cycle"] = {"matches": "not a list"}
    verdicts = [player.call("t", {}) for _ in range(4)]

    assert verdicts[-1].verdict.decision == "block"
    assert verdicts[-1].faults == (("cycle", "TypeError"),)
