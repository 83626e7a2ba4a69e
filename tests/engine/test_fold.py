"""The fold as a whole: rounds, resent calls, runs, sessions, answers of people."""

from __future__ import annotations

import pytest

from detection.engine import fold, interventions, snapshot
from detection.engine.calls import End
from detection.engine.policy import ToolRule
from tests.engine.play import Player


def test_disabled_means_no_state_at_all():
    player = Player(enabled=False)
    before = snapshot.dump(player.state)
    step = player.call("t", {})
    player.answer("x")

    assert step.verdict.decision == "allow"
    assert snapshot.dump(player.state) == before


def test_identical_calls_of_one_round_are_one_observation_and_share_its_verdict():
    player = Player()
    rounds = [[player.call("t", {}, round=f"r{i}") for _ in range(3)] for i in range(4)]

    assert [[step.verdict.decision for step in one] for one in rounds] == [["allow"] * 3] * 3 + [
        ["block"] * 3
    ]
    assert [step.duplicate for step in rounds[3]] == [False, True, True]
    assert rounds[3][1].verdict.message == rounds[3][0].verdict.message


def test_a_resent_call_counts_once_for_ever():
    player = Player()
    ids = [f"c{i}" for i in range(3)]
    for _ in range(5):
        for call_id in ids:
            step = player.call("t", {}, call_id=call_id, gap=0)

    assert step.duplicate
    assert player.call("t", {}, call_id="new").verdict.decision == "block"


def test_a_second_result_of_a_call_changes_nothing():
    player = Player()
    player.call("t", {})
    first, second = player.answer("a"), player.answer("b")

    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.result_is_new


def test_the_message_of_a_blocked_call_is_no_evidence():
    player = Player()
    for _ in range(4):
        step = player.call("t", {})
    (run,) = player.state.runs.values()

    def state():
        records = [(record.status, record.result, record.is_new) for record in run.records]
        return run.results, records, run.seen.packed

    before = state()
    blocked = player.answer(step.verdict.message, is_error=True)

    assert step.verdict.decision == "block"
    assert blocked.verdict.decision == "allow"
    assert blocked.cell.decision == "block"
    assert state() == before


def test_messages_of_blocked_calls_do_not_push_out_what_the_run_knows():
    player = Player()
    player.call("read", {"path": "a"})
    player.answer("the text of a")
    for number in range(300):
        player.call("search", {"q": "reset"})
        player.answer(f"The call was not run. It was made {number} times.", is_error=True)
    player.call("read", {"path": "a"})
    assert player.answer("the text of a").result_is_new is False
    assert len(snapshot.dump(player.state)) < 8_192


def test_a_call_after_a_spent_budget_has_a_new_result_only_once():
    player = Player(budget_max_calls=2)
    cells = []
    for number in range(6):
        player.call("t", {"page": number})
        cells.append(player.answer("nothing found" if number > 2 else f"page {number}").cell)
    assert [cell.decision for cell in cells[3:]] == ["stop"] * 3
    assert [cell.result for cell in cells] == ["new", "new", "new", "new", "same", "same"]


def test_a_result_of_an_unknown_call_is_ignored():
    assert Player().answer("x", call_id="nobody").result_digest is None


def test_a_different_call_goes_through_after_a_stop():
    player = Player(mode="break")
    assert player.letters("aaaab") == ["allow", "allow", "allow", "stop", "allow"]


def test_waiting_is_neither_evidence_nor_progress():
    player = Player()
    for _ in range(3):
        player.step("check", {}, "busy")
        player.step("sleep", {"seconds": 5}, "ok")

    assert player.call("check", {}).verdict.decision == "block"


def test_runs_are_counted_apart_even_when_they_interleave():
    player = Player()
    decisions = [player.call("t", {}, run="ab"[i % 2]).verdict.decision for i in range(8)]

    assert decisions == ["allow"] * 6 + ["block"] * 2


def test_the_end_of_a_run_forgets_it():
    player = Player()
    for _ in range(3):
        player.call("t", {}, run="r")
    fold.observe_end(player.state, End(0.0, "completed", run="r"), player.policy)

    assert player.call("t", {}, run="r").verdict.decision == "allow"


@pytest.mark.parametrize(
    ("preset", "is_warned"), [("advisory", False), ("balanced", False), ("proxy", True), ("standard", True)]
)
def test_a_message_begins_a_run_under_the_presets_that_count_executions(preset, is_warned):
    player = Player(preset)
    decisions = []
    for _ in range(8):
        player.message()
        decisions.append(player.step("search", {"q": "a"}, "same", is_error=True).decision)

    assert (set(decisions) != {"allow"}) == is_warned


@pytest.mark.parametrize("preset", ["advisory", "balanced"])
def test_a_message_leaves_the_runs_that_the_client_names_alone(preset):
    player = Player(preset)
    decisions = []
    for _ in range(3):
        player.message()
        decisions.append(player.step("search", {"q": "a"}, "same", run="nightly").decision)

    assert decisions[-1] == "warn"


def test_a_denied_limit_ends_with_the_next_message():
    player = Player("justified", budget_max_rounds=3, judge_available=True)
    assert [player.call("t", {"n": n}).verdict.decision for n in range(4)] == ["allow"] * 2 + ["hold"] * 2
    player.message()

    assert player.call("t", {"n": 4}).verdict.decision == "allow"


def test_the_result_of_an_earlier_run_closes_its_call_and_counts_nowhere_else():
    player = Player("balanced")
    player.call("search", {"q": "a"}, call_id="slow")
    player.message()
    player.message("user", "and the other one")
    player.step("search", {"q": "a"}, "same")
    closed = player.answer("same", call_id="slow")

    assert closed.closes == 0
    assert player.step("search", {"q": "b"}, "other").decision == "allow"


def test_runs_that_messages_begin_do_not_pile_up():
    player = Player("balanced")
    sizes = []
    for turn in range(30):
        player.message()
        for n in range(60):
            player.call("search", {"q": f"{turn} {n}", "text": "x" * 200})
        sizes.append(len(snapshot.dump(player.state)))
        assert len(player.state.runs) <= 2

    assert max(sizes) < snapshot.MAX_BYTES


def test_a_user_message_resets_an_attended_run_only():
    attended, alone = Player(attended=True), Player()
    for player in (attended, alone):
        player.letters("aaa")
        player.message()

    assert attended.call("t", {"k": "a"}).verdict.decision == "allow"
    assert alone.call("t", {"k": "a"}).verdict.decision == "block"


def test_a_condensed_context_does_not_end_a_loop():
    player = Player(attended=True)
    player.letters("aaa")
    player.message("condense")

    assert player.call("t", {"k": "a"}).verdict.decision == "block"


def test_after_allow_once_the_loop_is_counted_from_the_start():
    player = Player(mode="ask")
    held = [player.call("t", {}) for _ in range(4)][-1].verdict
    assert held.decision == "hold"

    assert interventions.apply_choice(player.state, held.finding.calls_digest, "allow_once")

    assert [player.call("t", {}).verdict.decision for _ in range(4)] == ["allow"] * 3 + ["hold"]


def test_a_raised_limit_holds_for_that_loop_alone():
    player = Player(mode="ask")
    held = [player.call("t", {}) for _ in range(4)][-1].verdict
    interventions.apply_choice(player.state, held.finding.calls_digest, "raise", by=2)

    assert [player.call("t", {}).verdict.decision for _ in range(6)] == ["allow"] * 5 + ["hold"]
    assert [player.call("u", {}).verdict.decision for _ in range(4)][-1] == "hold"


def test_a_skipped_call_needs_an_approval_again():
    player = Player(mode="ask")
    held = [player.call("t", {}) for _ in range(4)][-1].verdict
    interventions.apply_choice(player.state, held.finding.calls_digest, "skip")

    assert player.call("t", {}).verdict.decision == "hold"


def test_an_unknown_loop_cannot_be_rearmed():
    assert not interventions.apply_choice(Player().state, "00", "allow_once")


def test_an_exempt_tool_is_judged_no_more():
    player = Player()
    player.letters("aaa")
    interventions.exempt(player.state, "t")

    assert {player.call("t", {"k": "a"}).verdict.decision for _ in range(5)} == {"allow"}


def test_resuming_resets_every_counter():
    player = Player()
    player.letters("aaaa")
    interventions.reset_all(player.state)

    assert player.letters("aaaa") == ["allow", "allow", "allow", "block"]


def test_an_accepted_justification_makes_the_round_in_hand_the_first_of_the_new_budget():
    player = Player("justified", budget_max_rounds=4)
    assert [player.call("t", {"n": i}).verdict.decision for i in range(4)][-1] == "hold"

    interventions.grant_rounds(player.state, 3)
    decisions = [player.call("t", {"n": i}).verdict for i in range(10, 13)]

    assert [one.decision for one in decisions] == ["allow", "allow", "stop"]


def test_the_meter_says_how_close_the_session_is():
    player = Player()
    meters = [player.call("t", {}).verdict.meter for _ in range(3)]

    assert [(one.kind, one.count, one.limit) for one in meters] == [
        ("repeat", 1, 4),
        ("repeat", 2, 4),
        ("repeat", 3, 4),
    ]


def test_a_cell_carries_what_the_strip_shows():
    player = Player()
    player.call("t", {})
    cell = player.answer("x").cell

    assert (cell.tool, cell.decision, cell.result, len(cell.key)) == ("t", "allow", "new", 8)


def test_the_state_stays_small_at_any_length():
    player = Player()
    for i in range(3000):
        player.step(
            f"tool_{i % 50}", {"query": f"word {i} " * 20, "page": i}, f"answer {i} " * 30, round=f"r{i}"
        )

    assert len(snapshot.dump(player.state)) < 18 * 1024


def test_the_literal_preset_stays_within_its_bound_too():
    player = Player("similarity")
    for i in range(300):
        player.step("t", {"text": f"{i} " * 3000}, f"{i} " * 3000, run=f"r{i % 5}")

    assert len(snapshot.dump(player.state)) <= 32 * 1024


@pytest.mark.parametrize(
    "settings",
    [
        {"scattered_window_calls": 60, "scattered_run_repeats": 0, "scattered_repeats": 2},
        {"similar_window_calls": 40, "similar_max_calls": 2, "similar_method": "literal"},
    ],
    ids=["calls", "arguments"],
)
def test_calls_of_other_tools_do_not_shorten_the_memory_of_a_tool_with_a_larger_window(settings):
    player = Player(
        rules=[ToolRule("lookup", values=settings)], outcome_enabled=False, stagnation_enabled=False
    )
    query = "the history of the harbour of a town by the sea"
    player.step("lookup", {"query": query}, "a page about something")
    for number in range(36):
        player.step("fetch", {"page": f"{number} {number * number}"}, f"page {number * 31}")

    if "similar_method" in settings:
        query += " today"
    assert player.step("lookup", {"query": query}, "a page about something").decision == "warn"
