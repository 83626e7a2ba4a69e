"""Reused call ids, results without an id, and the rounds of calls whose client names none."""

import pytest

from detection.engine import fold, snapshot
from detection.engine.calls import Result
from detection.engine.open_calls import MAX_JOINING_REQUESTS
from tests.engine.play import KEYER, Player


def decisions_of_ten(player, **more):
    """Ten identical calls with one id, each with its result unless it was blocked."""
    out = []
    for number in range(10):
        named = {name: value.format(number) for name, value in more.items()}
        step = player.call("t", {}, call_id="call_0", **named)
        assert not step.duplicate
        out.append(step.verdict.decision)
        player.answer("same" if out[-1] in ("allow", "warn") else step.verdict.message, call_id="call_0")
    return out


@pytest.mark.parametrize("more", [{"round": "r-{}"}, {"round": "seq-{}"}, {}])
def test_ten_identical_calls_with_one_id_are_ten_calls(more):
    reused, plain = Player(), Player()
    unique = [plain.step("t", {}, "same", **{k: v.format(n) for k, v in more.items()}) for n in range(10)]
    assert "block" in decisions_of_ten(reused, **more)
    assert reused.state.runs[""].ordinal == plain.state.runs[""].ordinal == len(unique)


def test_an_id_in_another_round_is_a_new_call_although_the_first_one_is_open():
    player = Player()
    steps = [player.call("t", {}, call_id="call_0", round=f"r-{number}") for number in range(4)]
    assert [step.duplicate for step in steps] == [False] * 4
    assert steps[-1].verdict.decision == "block"


def test_within_its_round_a_call_stays_known_after_its_result():
    player = Player()
    player.call("t", {}, call_id="call_0", round="r-1")
    player.answer("x", call_id="call_0")
    assert player.call("t", {}, call_id="call_0", round="r-1").duplicate


def test_another_call_with_the_id_of_an_open_one_is_new():
    player = Player()
    player.call("t", {"page": 1}, call_id="call_0")
    assert not player.call("t", {"page": 2}, call_id="call_0").duplicate
    assert player.call("t", {"page": 2}, call_id="call_0").duplicate
    assert not player.call("t", {"page": 1}, call_id="call_0").duplicate
    same_round = [player.call("t", {"page": n}, call_id="call_1", round="r") for n in (1, 2, 1, 2)]
    assert [step.duplicate for step in same_round] == [False, False, True, True]


def answered(player, **result):
    """Report a result without an id; the sequence number of the call that it belongs to."""
    observed = Result("", "text", False, player.now, **result)
    return fold.observe_result(player.state, observed, player.policy, KEYER).closes


def test_a_result_without_an_id_belongs_to_the_oldest_open_call_that_fits():
    player = Player()
    for tool, page in (("a", 1), ("sleep", 1), ("b", 1), ("b", 2), ("a", 2), ("b", 1)):
        player.call(tool, {"page": page})
    assert answered(player, tool="b", arguments='{"page": 2}') == 3
    assert answered(player, tool="b", arguments={"page": 1}) == 2
    assert answered(player, tool="b", arguments={"page": 3}) is None
    assert answered(player, tool="sleep") == 1
    player.state = snapshot.load(snapshot.dump(player.state))
    assert [answered(player) for _ in range(4)] == [0, 4, 5, None]


def test_a_result_without_an_id_belongs_to_no_blocked_call():
    player = Player()
    assert [player.call("t", {}).verdict.decision for _ in range(4)][-1] == "block"
    assert [answered(player) for _ in range(4)] == [0, 1, 2, None]


def test_of_calls_with_one_id_a_result_belongs_to_the_oldest_open_one_of_the_latest_round():
    player = Player()
    for round_id, page in (("r-1", 1), ("r-2", 2), ("r-2", 3)):
        player.call("t", {"page": page}, call_id="call_0", round=round_id)
    assert [player.answer("x", call_id="call_0").closes for _ in range(4)] == [1, 2, 0, None]


def test_after_a_result_without_an_id_earlier_ids_are_new():
    player = Player()
    player.call("t", {}, call_id="call_0")
    answered(player)
    assert not player.call("t", {}, call_id="call_0").duplicate


def requests(player, count):
    """Identical calls, each in a request of its own; what became of each."""
    return [player.call("t", {}, round=f"seq-{100 + number}") for number in range(count)]


def test_requests_join_the_open_round_of_a_session_that_reports_results():
    player = Player()
    player.step("other", {}, "x", round="seq-1")
    parallel = requests(player, 5)
    assert [step.duplicate for step in parallel] == [False, True, True, True, True]
    player.answer("same", call_id="call-1")
    assert not player.call("t", {}, round="seq-200").duplicate, "a result of the round has come"


def test_a_call_that_stays_open_does_not_hide_a_loop():
    """Its agent was killed, and started again with the same session."""
    player = Player()
    player.step("t", {}, "same", round="seq-1")
    player.call("t", {}, round="seq-2", call_id="killed")
    decisions = []
    for number in range(5):
        step = player.call("t", {}, call_id=f"again-{number}", round=f"seq-{number + 3}")
        player.answer("same", call_id=f"again-{number}")
        decisions.append(step.verdict.decision)
    assert decisions == ["allow", "allow", "block", "block", "block"]


def test_a_session_that_never_reports_results_is_judged_request_by_request():
    player = Player()
    assert [step.duplicate for step in requests(player, 4)] == [False] * 4
    same = [player.call("u", {}, round="seq-300") for _ in range(2)]
    assert [step.duplicate for step in same] == [False, True]


def test_a_loop_of_calls_whose_results_are_never_reported_is_found_nevertheless():
    player = Player()
    player.step("other", {}, "x", round="seq-1")
    verdicts = [step.verdict.decision for step in requests(player, MAX_JOINING_REQUESTS + 4)]
    assert verdicts[-1] == "block"
