"""Messages for the agent."""

from __future__ import annotations

import pytest

from detection.engine import fold, messages
from tests.engine.play import Player


def stopped(**values):
    player = Player(**values)
    return [player.call("get_weather", {"city": "Timbuktu"}) for _ in range(4)][-1].verdict


def test_a_stop_names_tool_count_and_window_and_says_that_the_session_was_stopped():
    message = stopped(preset="proxy").message

    for part in ("'get_weather'", "4 times within 120s", "Session stopped"):
        assert part in message


def test_the_window_is_the_time_that_the_calls_really_span():
    """Under `standard` the age counts from the previous identical call, so calls a minute apart go on for ever."""
    player = Player(repeat_warn_at=0)
    verdicts = [player.call("get_weather", {}, gap=60.0).verdict for _ in range(16)]

    assert "16 times within 900s" in verdicts[-1].message
    assert verdicts[-1].finding.window_seconds == 900


def test_slow_calls_are_all_named_although_they_count_as_a_fifth():
    player = Player()
    verdicts = [player.step("get_weather", {}, "rain", gap=60.0) for _ in range(11)]

    assert verdicts[-1].finding.count == 3
    assert "11 times within 600s" in verdicts[-1].message


def test_slow_calls_without_a_new_result_are_all_named():
    player = Player(repeat_enabled=False, outcome_enabled=False, similar_enabled=False, cycle_enabled=False)
    for tool in "abc":
        player.step(tool, {}, tool)
    verdicts = [player.step("abc"[number % 3], {}, "abc"[number % 3], gap=30.0) for number in range(25)]

    warned = next(one for one in verdicts if one.decision == "warn")
    assert (warned.finding.count, warned.finding.detail["calls"]) == (5, 25)
    assert "the last 25 calls" in warned.message


def test_a_changed_result_starts_the_span_over():
    player = Player()
    for number in range(5):
        player.step("get_weather", {}, f"rain {number}", gap=15.0)
    verdicts = [player.step("get_weather", {}, "sun", gap=10.0) for _ in range(3)]

    assert "3 times within 20s" in verdicts[-1].message


def test_a_count_over_the_whole_run_names_no_window():
    verdict = stopped(repeat_scope="run")

    assert verdict.finding.window_seconds is None


def test_a_spent_extension_names_the_limit_in_force():
    player = Player("justified", budget_max_rounds=8)
    for number in range(8):
        player.call("t", {"n": number})
    fold.grant_rounds(player.state, 4)
    verdicts = [player.call("t", {"n": number}).verdict for number in range(8, 13)]

    assert [one.decision for one in verdicts] == ["allow", "allow", "allow", "stop", "stop"]
    assert "12 rounds of its limit of 12" in verdicts[3].message
    assert "13 rounds of its limit of 12" in verdicts[4].message


@pytest.mark.parametrize(
    ("values", "tools"),
    [({"cycle_unknown_laps": 3}, "ababab"), ({"budget_max_calls": 4}, "abcd"), ({"repeat_scope": "window"}, "aaaa")],
    ids=["cycle", "budget", "window"],
)  # fmt: skip
def test_a_resent_call_gets_the_same_message(values, tools):
    player = Player(**values)
    verdict = [player.call(tool, {}).verdict for tool in tools][-1]
    resent = player.call(tools[-1], {}, call_id=player.last_id)

    assert resent.duplicate
    assert verdict.message
    assert resent.verdict.message == verdict.message


@pytest.mark.parametrize("mode", ["break", "chance", "warn", "block", "ask", "justify"])
def test_no_message_quotes_the_arguments(mode):
    verdict = stopped(mode=mode)

    assert verdict.message
    assert "Timbuktu" not in verdict.message
    assert verdict.message.isascii()


def test_observing_says_nothing():
    verdict = stopped(mode="observe")

    assert (verdict.decision, verdict.rung, verdict.message) == ("allow", "observe", "")


def test_a_stop_after_a_chance_says_so():
    player = Player("proxy", mode="chance")
    verdict = [player.call("t", {}) for _ in range(5)][-1].verdict

    assert "after guidance" in verdict.message


def test_custom_templates_may_use_the_figures():
    verdict = stopped()
    own = messages.message(
        "stop", verdict.finding, Player().policy, {"stop": "$tool/$count/$limit/$kind/$seconds $unknown"}
    )

    assert own == "get_weather/4/4/repeat/6 $unknown"


def test_the_shapes_are_those_of_the_clients():
    assert messages.render("text", "block", "m") == "m"
    assert messages.render("openai", "block", "m", "c") == {
        "role": "tool",
        "tool_call_id": "c",
        "content": "m",
    }
    assert messages.render("anthropic", "block", "m", "c")["is_error"] is True
    assert messages.render("anthropic", "warn", "m", "c")["is_error"] is False
    assert messages.render("mcp", "stop", "m") == {
        "content": [{"type": "text", "text": "m"}],
        "isError": True,
    }
    assert messages.render("claude_code", "block", "m")["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert messages.render("claude_code", "stop", "m") == {"continue": False, "stopReason": "m"}


def test_an_openai_stop_is_a_whole_completion_with_one_choice_that_ends_in_an_error():
    envelope = messages.render("openai", "stop", "m", "c", "gpt-5")

    assert envelope["model"] == "gpt-5"
    assert [choice["finish_reason"] for choice in envelope["choices"]] == ["error"]
    assert envelope["choices"][0]["message"] == {"role": "assistant", "content": "m"}


def test_an_unknown_shape_is_rejected():
    with pytest.raises(ValueError, match="smoke"):
        messages.render("smoke", "allow", "m")
