"""What the agent is told."""

from __future__ import annotations

import pytest

from detection.engine import messages
from tests.engine.play import Player


def stopped(**values):
    player = Player(**values)
    return [player.call("get_weather", {"city": "Timbuktu"}) for _ in range(4)][-1].verdict


def test_a_stop_names_tool_count_and_window_and_says_that_the_session_was_stopped():
    message = stopped().message

    for part in ("'get_weather'", "4 times", "120s", "Session stopped"):
        assert part in message


@pytest.mark.parametrize("mode", ["break", "chance", "warn", "block", "ask", "justify"])
def test_no_text_quotes_the_arguments(mode):
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


def test_own_wording_may_use_the_figures():
    verdict = stopped()
    own = messages.message(
        "stop", verdict.finding, Player().policy, {"stop": "$tool/$count/$limit/$kind/$seconds $unknown"}
    )

    assert own == "get_weather/4/4/repeat/120 $unknown"


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


def test_an_unknown_shape_is_refused():
    with pytest.raises(ValueError, match="smoke"):
        messages.render("smoke", "allow", "m")
