"""Ladders: which rung a detection takes."""

from __future__ import annotations

import pytest

from tests.engine.play import Player


def decisions(player, calls=6, tool="t"):
    return [player.call(tool, {}).verdict.decision for _ in range(calls)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("break", ["stop", "stop", "stop"]),
        ("chance_then_break", ["block", "stop", "stop"]),
        ("graduated", ["warn", "warn", "stop"]),
        ("warn", ["warn", "warn", "warn"]),
        ("ask", ["hold", "hold", "hold"]),
        ("observe", ["allow", "allow", "allow"]),
        (["block"], ["block", "block", "block"]),
    ],
)
def test_successive_detections_walk_down_and_the_last_rung_repeats(mode, expected):
    assert decisions(Player("proxy", mode=mode)) == ["allow"] * 3 + expected


def test_a_warning_has_time_to_work_before_the_next_rung():
    assert decisions(Player(mode="graduated"), 12) == ["allow"] * 3 + [
        "warn", "allow", "allow", "warn", "allow", "allow", "stop", "stop", "stop",
    ]  # fmt: skip


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
    assert player.call("t", {}).verdict.decision == "hold"

    assert player.call("u", {}).verdict.decision == "allow"
