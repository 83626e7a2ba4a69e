"""Messages for the agent."""

from __future__ import annotations

import pytest

from detection.engine import interventions, messages
from detection.engine.policy import ToolRule
from tests.engine.play import Player


def stopped(**values):
    player = Player(**values)
    return [player.call("get_weather", {"city": "Timbuktu"}) for _ in range(4)][-1].verdict


def test_a_stop_names_tool_count_and_window_and_says_that_the_session_was_stopped():
    message = stopped(preset="proxy").message

    for part in ("'get_weather'", "4 times within 120 s", "Session stopped"):
        assert part in message


def test_the_window_is_the_time_that_the_calls_really_span():
    """Under `standard` the age counts from the previous identical call, so calls a minute apart go on for ever."""
    player = Player(repeat_warn_at=0)
    verdicts = [player.call("get_weather", {}, gap=60.0).verdict for _ in range(16)]

    assert "16 times within 900 s" in verdicts[-1].message
    assert verdicts[-1].finding.window_seconds == 900


def test_calls_at_the_same_moment_were_made_within_one_second():
    player = Player()
    verdicts = [player.call("get_weather", {}, gap=0.0).verdict for _ in range(4)]

    assert "4 times within 1 s" in verdicts[-1].message


def test_slow_calls_are_all_named_although_they_count_as_a_fifth():
    player = Player()
    verdicts = [player.step("get_weather", {}, "rain", gap=60.0) for _ in range(11)]

    assert verdicts[-1].finding.count == 3
    assert "11 times within 600 s" in verdicts[-1].message


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

    assert "3 times within 20 s" in verdicts[-1].message


def test_a_count_over_the_whole_run_names_no_window():
    verdict = stopped(repeat_scope="run")

    assert verdict.finding.window_seconds is None


def test_a_spent_extension_names_the_limit_in_force():
    player = Player("justified", budget_max_rounds=8)
    for number in range(8):
        player.call("t", {"n": number})
    interventions.grant_rounds(player.state, 4)
    verdicts = [player.call("t", {"n": number}).verdict for number in range(8, 13)]

    assert [one.decision for one in verdicts] == ["allow", "allow", "allow", "stop", "stop"]
    assert "reached its limit of 11 rounds" in verdicts[3].message
    assert "reached its limit of 11 rounds" in verdicts[4].message


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


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("chance_then_break", ["will end the session"]),
        ("block_then_stop", ["will not be run"] * 3 + ["will end the session"]),
    ],
)
def test_a_blocked_call_says_what_the_same_call_will_lead_to(mode, expected):
    player = Player(mode=mode)
    messages = [player.call("t", {}).verdict.message for _ in range(3 + len(expected))][3:]

    assert [message.split("The same call again ")[1] for message in messages] == [
        f"{one}." for one in expected
    ]


CLASS_LOOPS = {
    "poll": ("Wait once", ["vary", "Change the inputs", "different approach", "Adjust"]),
    "read": ("use it, look for something else", ["Change the inputs"]),
    "change": ("check what the earlier calls did", ["Change the inputs"]),
    "message": ("Do not send it again", ["Change the inputs"]),
    "fallible": ("Use the output of the earlier calls", ["Change the inputs", "the cause"]),
}


@pytest.mark.parametrize("tool_class", CLASS_LOOPS)
def test_each_tool_class_has_messages_of_its_own(tool_class):
    advice, wrong = CLASS_LOOPS[tool_class]
    player = Player(rules=[ToolRule("t", tool_class=tool_class)], poll_max_repeats=4, poll_warn_at=3)
    warned, *blocked, stopped = [player.step("t", {}, "same", is_error=False) for _ in range(8)][2:]

    assert [one.rung for one in (warned, *blocked, stopped)] == ["warn", "chance", *["block"] * 3, "stop"]
    assert all(advice in one.message for one in (warned, *blocked))
    assert not any(text in one.message for text in wrong for one in (warned, *blocked))
    if tool_class == "poll":
        assert not any(text in stopped.message for text in wrong)


def test_a_poll_that_is_known_by_its_arguments_gets_the_messages_of_polls():
    player = Player(poll_warn_at=3)
    warned = [player.step("write_stdin", {"session": 4, "chars": ""}, "running") for _ in range(3)][-1]

    assert "Wait once" in warned.message


def test_a_spent_budget_gives_the_advice_of_budgets_whatever_the_tool():
    player = Player(rules=[ToolRule("t", tool_class="poll")], budget_max_calls=3, budget_ladder="block")
    verdicts = [player.step("t", {"n": n}, f"state {n}") for n in range(3)]

    assert "break the request into smaller steps" in verdicts[-1].message


@pytest.mark.parametrize(
    ("values", "window"),
    [
        ({"preset": "balanced", "max_repeats": 4, "mode": "block"}, "11 calls"),
        ({"repeat_scope": "window", "window_calls": 20, "ttl_seconds": 60}, "21 calls and 1 min"),
        ({"preset": "proxy"}, "2 min"),
        ({}, "6 s"),
        ({"preset": "interactive"}, "this session"),
        ({"repeat_scope": "run"}, "this run"),
    ],
)
def test_a_template_states_the_window_that_was_counted_over(values, window):
    player = Player(**values)
    finding = [player.call("t", {}) for _ in range(4)][-1].verdict.finding

    assert messages.message("block", finding, player.policy, {"block": "$window"}) == window


def test_the_message_of_similar_calls_names_its_window():
    player = Player(outcome_enabled=False, stagnation_enabled=False)
    for tool in ("a", "b"):
        player.step(tool, {}, tool)
    found = [
        player.step("search", {"q": f"how do I reset a lost account password again part {n}"}, "ab"[n % 2])
        for n in range(12)
    ]

    assert any("in the last 13 calls with nearly identical arguments" in one.message for one in found)


def test_a_resent_blocked_call_gets_the_same_message():
    player = Player()
    for _ in range(3):
        player.call("t", {})
    blocked = player.call("t", {}).verdict
    resent = player.call("t", {}, call_id=player.last_id)

    assert "will not be run" in blocked.message
    assert (resent.duplicate, resent.verdict.message) == (True, blocked.message)


def test_custom_templates_may_use_the_figures():
    verdict = stopped()
    own = messages.message(
        "stop", verdict.finding, Player().policy, {"stop": "$tool/$count/$limit/$kind/$seconds $unknown"}
    )

    assert own == "get_weather/4/4/repeat/6 $unknown"


@pytest.mark.parametrize("name", ["search_web", "update_booking", "send_email", "lookup"])
def test_trouble_of_a_provider_is_no_loop_whatever_the_tool(name):
    player = Player()
    steps = [player.step(name, {"q": f"topic {n}"}, "429 Too Many Requests", is_error=True) for n in range(3)]

    assert "(rate limit). Varying the call will not help: wait" in steps[-1].message
    assert "in a loop" not in steps[-1].message


def test_only_a_repeat_is_told_that_it_reads_the_same_again():
    player = Player()
    repeated = [player.step("read_file", {"path": "a"}, "text") for _ in range(3)]
    player = Player()
    swept = [
        player.step("search_docs", {"q": q}, "No results found.") for q in ("ab", "cd ef", "gh ij kl", "m")
    ]

    assert "The same call returns" in repeated[-1].message
    assert "The same call returns" not in swept[-1].message
    assert "a way you have not tried" in swept[-1].message
