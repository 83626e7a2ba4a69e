"""The features of the five known systems through the API: a preset, calls over POST /guard, results with the next call."""

import json
import logging
import os
import secrets
import subprocess
import sys
import time

import pytest

from detection import logs
from detection.engine.policy import environment_override
from detection.models import Approval
from detection.services.approvals import judge_consultation
from detection.services.sessions import folding
from loopguard_site.judge_env import JudgeEndpoint
from loopguard_site.layout import ROOT
from tests.support.judge_server import JudgeServer, completion, ruling


class Run:
    """An agent in one session: each call is asked about, and its result is sent with the next one."""

    def __init__(self, api, session="s-1", **about):
        self.api, self.session, self.about, self.results, self.number = api, session, about, [], 0

    def call(self, tool="search", arguments=None, result=None, *, is_error=False, **more):
        """Ask about one call; its verdict, with the notices of the results before it."""
        self.number += 1
        name = f"{self.session}-c{self.number}"
        call = {"call_id": name, "tool": tool, "arguments": {"q": "x"} if arguments is None else arguments}
        body = {"session": self.session, "results": self.results, "calls": [call], **self.about, **more}
        answer = self.api.post("/guard?render=openai", body)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        verdict = document["verdicts"][0] | {"notices": document["notices"]}
        self.results = []
        if result is not None and verdict["decision"] in ("allow", "warn"):
            self.results = [{"call_id": name, "content": result, "is_error": is_error}]
        return verdict

    def decisions(self, *calls):
        """The decisions of calls that are given by their arguments, or by tool and arguments."""
        return [self.call(*(one if isinstance(one, tuple) else ("search", one)))["decision"] for one in calls]

    def letters(self, script):
        """One call per letter; the numbers of those that are detected, and their verdicts."""
        verdicts = [self.call("t", {"k": letter}) for letter in script]
        return {at: one for at, one in enumerate(verdicts, 1) if one["finding"]}


@pytest.fixture
def under(api):
    """Return a function that sets the project's settings and begins a run."""

    def begin(preset, session="s-1", about=None, **values):
        answer = api.put("/overrides", {"values": {"preset": preset, **values}})
        assert answer.status_code == 200, answer.text
        return Run(api, session, **about or {})

    return begin


LOOP = ["allow", "allow", "allow", "stop"]


# 000: the proxy


def test_calls_are_tracked_by_session_with_time_tool_and_arguments(under, api):
    first = under("proxy")
    second = Run(api, "s-2")
    assert first.decisions("x", "x", "x") == second.decisions("x", "x", "x") == LOOP[:3]
    assert first.call(arguments="x")["decision"] == "stop"
    assert second.call("read", {"path": "a"})["decision"] == "allow"
    calls = api.get("/sessions/s-2/calls").json()["items"]
    assert [(one["tool"], one["arguments"]) for one in calls][-1] == ("read", '{"path":"a"}')
    assert len(calls) == 4
    assert all(one["received_at"] for one in calls)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}'),
        ("{not json", "{not json"),
        ({}, {}),
    ],
)
def test_these_arguments_are_the_same_for_the_proxy(under, one, other):
    assert under("proxy").decisions(one, other, one, other) == LOOP


@pytest.mark.parametrize(
    ("one", "other"),
    [({"l": [1, 2]}, {"l": [2, 1]}), ({"n": 1}, {"n": "1"}), ("{not json", "{not  json"), ({}, {"a": None})],
)
def test_these_arguments_differ_for_the_proxy(under, one, other):
    assert under("proxy").decisions(one, other, one, other, one, other) == ["allow"] * 6


def test_entries_older_than_the_window_do_not_count_and_the_count_starts_over(under):
    run = under("proxy", ttl_seconds=1)
    assert run.decisions("x", "x", "x") == LOOP[:3]
    time.sleep(1.1)
    assert run.decisions("x", "x", "x", "x") == LOOP


def test_only_consecutive_calls_count_unless_interleaved_ones_are_to(under):
    assert under("proxy").decisions(*"xxxyxxx") == ["allow"] * 7
    both = under("proxy", "s-2", repeat_scope="window").decisions(*"xyxyxyx")
    assert both == ["allow"] * 6 + ["stop"]


def test_a_break_is_one_choice_that_ends_in_an_error_with_tool_count_window_and_a_hint(under, api):
    run = under("proxy", about={"model": "gpt-5"}, max_repeats=3, ttl_seconds=90)
    verdict = [run.call() for _ in range(3)][-1]
    assert verdict["decision"] == "stop"
    (choice,) = verdict["rendered"]["choices"]
    assert (choice["finish_reason"], choice["message"]["role"]) == ("error", "assistant")
    text = choice["message"]["content"]
    assert text == verdict["message"]
    for part in (
        "'search'",
        "3 times",
        "within 90 s",
        "Session stopped",
        "Adjust the inputs or the strategy",
    ):
        assert part in text
    assert api.get("/sessions/s-1").json()["state"] == "stopped"


def test_a_chance_names_the_way_out_and_the_same_call_again_ends_the_run(under):
    run = under("proxy", mode="chance")
    verdict = [run.call() for _ in range(4)][-1]
    assert (verdict["decision"], verdict["rung"]) == ("block", "chance")
    assert "Reflect" in verdict["message"]
    assert verdict["policy"]["mode"]["value"] == "chance_then_break"
    again = run.call()
    assert again["decision"] == "stop"
    assert "after guidance" in again["message"]


def test_another_call_after_a_chance_goes_on_and_a_new_loop_gets_a_new_chance(under):
    run = under("proxy", mode="chance_then_break")
    assert run.decisions(*"xxxxy") == ["allow", "allow", "allow", "block", "allow"]
    assert run.decisions(*"xxxx") == ["allow", "allow", "allow", "block"]


def test_session_precedes_model_precedes_server_setting_by_setting(under, api):
    about = {"backend": "openai", "model": "gpt-5"}
    run = under("proxy", about=about, max_repeats=7, ttl_seconds=60, mode="warn")
    api.put("/overrides/openai/gpt-5", {"values": {"max_repeats": 6, "ttl_seconds": 90}})
    run.call()
    api.patch("/sessions/s-1/policy", {"max_repeats": 3})
    run.call()
    found = run.call()["policy"]
    assert {name: (found[name]["value"], found[name]["source"]) for name in ("max_repeats", "ttl_seconds", "mode")} == {
        "max_repeats": (3, "session"), "ttl_seconds": (90, "model:openai/gpt-5"), "mode": ("warn", "project"),
    }  # fmt: skip
    assert Run(api, "s-2", **about).decisions(*"xxxxxx") == ["allow"] * 5 + ["warn"]
    assert Run(api, "s-3").decisions(*"xxxxxxx") == ["allow"] * 6 + ["warn"]


def command(api, text, session="s-1"):
    answer = api.post(f"/sessions/{session}/commands", {"text": text})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("name", "written", "stored"),
    [
        ("tool-loop-detection", "false", {"enabled": False}),
        ("tool-loop-max-repeats", "6", {"max_repeats": 6}),
        ("tool-loop-ttl", "60", {"ttl_seconds": 60}),
        ("tool-loop-mode", "break", {"mode": "break"}),
        ("tool-loop-mode", "chance", {"mode": "chance_then_break"}),
        ("tool-loop-mode", "chance_then_break", {"mode": "chance_then_break"}),
    ],
)
def test_commands_set_and_unset_each_documented_setting(under, api, name, written, stored):
    under("proxy").call()
    told = command(api, f"!/set({name}={written})")
    assert told["policy_values"] == stored
    assert name in " ".join(told["lines"])
    assert command(api, f"!/unset({name})")["policy_values"] == {}


def test_one_command_unsets_several_settings_and_the_calls_after_it_are_counted_by_the_defaults(under, api):
    run = under("proxy")
    run.call()
    command(api, "!/set(tool-loop-max-repeats=9, tool-loop-ttl=60, tool-loop-mode=chance)")
    assert run.decisions(*"yyyy") == ["allow"] * 4
    assert command(api, "!/unset(tool-loop-max-repeats, tool-loop-mode)")["policy_values"] == {
        "ttl_seconds": 60
    }
    assert run.call(arguments="y")["decision"] == "stop"


def test_help_names_every_documented_setting_and_a_wrong_command_what_is_allowed(under, api):
    under("proxy").call()
    told = " ".join(command(api, "!/help()")["lines"])
    for name in ("tool-loop-detection", "tool-loop-max-repeats", "tool-loop-ttl", "tool-loop-mode"):
        assert name in told
    wrong = command(api, "!/set(tool-loop-max-repeats=1)")
    assert (wrong["changed"], wrong["policy_values"]) == (False, {})
    assert "2" in " ".join(wrong["lines"])


def test_while_detection_is_off_nothing_counts_and_it_starts_clean(under, api):
    run = under("proxy", enabled=False)
    assert run.decisions(*"xxxxxxxx") == ["allow"] * 8
    assert api.get("/incidents").json()["items"] == []
    under("proxy")
    assert run.decisions(*"xxxx") == LOOP


def test_the_documented_defaults_hold_where_nothing_else_is_set(under, api):
    under("proxy")
    policy = api.get("/policy").json()["policy"]
    defaults = {"enabled": True, "max_repeats": 4, "ttl_seconds": 120, "mode": "break"}
    assert {name: policy[name]["value"] for name in defaults} == defaults


@pytest.mark.parametrize(
    ("variable", "text", "name", "value", "decisions"),
    [
        ("TOOL_LOOP_DETECTION_ENABLED", "false", "enabled", False, ["allow"] * 5),
        ("TOOL_LOOP_MAX_REPEATS", "3", "max_repeats", 3, ["allow", "allow", "stop", "stop", "stop"]),
        ("TOOL_LOOP_TTL_SECONDS", "60", "ttl_seconds", 60, [*LOOP, "stop"]),
        ("TOOL_LOOP_MODE", "chance_then_break", "mode", "chance_then_break", [*LOOP[:3], "block", "stop"]),
    ],
)
def test_the_documented_variables_of_the_environment_apply(
    api, settings, variable, text, name, value, decisions
):
    settings.TOOL_LOOP_VALUES = environment_override({"TOOL_LOOP_PRESET": "proxy", variable: text})
    assert api.get("/policy").json()["policy"][name] == {"value": value, "source": "environment"}
    assert Run(api).decisions(*"xxxxx") == decisions


def test_a_variable_that_is_not_allowed_ends_the_start_with_its_name():
    environment = {**os.environ, "LOOPGUARD_BOOTSTRAP": "0", "TOOL_LOOP_MAX_REPEATS": "1"}
    command = [sys.executable, "manage.py", "check"]
    told = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert told.returncode != 0
    assert "TOOL_LOOP_MAX_REPEATS" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.fixture
def debug_lines(caplog):
    """The lines of the log at the level DEBUG, as the variable LOOPGUARD_LOG_LEVEL sets it."""
    caplog.set_level(logging.DEBUG, logger="detection")

    def set_level(level):
        logs.formatter(level=level)
        vars(folding.log).pop("bind", None)  # a logger keeps the level of its first line

    set_level("DEBUG")
    yield lambda event: [one.msg for one in caplog.records if one.msg["event"] == event]
    set_level("INFO")


def test_the_debug_log_has_signatures_and_no_secret(under, debug_lines):
    run = under("proxy")
    run.decisions({"q": "password hunter2-secret"}, {"q": "password hunter2-secret"}, {"q": "y"})
    lines = debug_lines("call_signature")
    assert [one["tool"] for one in lines] == ["search"] * 3
    assert len({one["signature"] for one in lines}) == 2
    assert "hunter2" not in json.dumps(lines, default=str)


# 001: four levels


@pytest.mark.parametrize(
    ("script", "fires"),
    [("abcadb", []), ("abcada", [6]), ("aabcdefghia", [11]), ("aabcdefghija", []), ("abcdefghij", [])],
)
def test_two_earlier_copies_in_a_window_of_ten_calls_are_a_repeat(under, script, fires):
    found = under("balanced", cycle_enabled=False).letters(script)
    assert [*found] == fires
    assert {one["finding"]["kind"] for one in found.values()} <= {"repeat"}


@pytest.mark.parametrize(
    ("script", "length"),
    [("abab", 2), ("abcabc", 3), ("abcdeabcde", 5), ("abcdefabcdef", None), ("abcabd", None)],
)
def test_a_cycle_of_two_to_five_calls_is_found_at_its_second_lap(under, script, length):
    found = under("balanced").letters(script)
    assert [*found] == ([len(script)] if length else [])
    for verdict in found.values():
        finding = verdict["finding"]
        assert (finding["kind"], finding["period"], finding["laps"]) == ("cycle", length, 2)
        assert len(finding["pattern"]) == length
        assert 0 < finding["confidence"] < 1
        assert (verdict["rung"], verdict["detection_number"]) == ("warn", 1)


def test_an_exact_repetition_wins_over_a_pattern(under):
    found = under("balanced").letters("ababab")
    assert [found[at]["finding"]["kind"] for at in (4, 5, 6)] == ["cycle", "repeat", "repeat"]


def test_the_actions_are_taken_in_turn_and_ending_starts_over(under):
    run = under("balanced")
    assert run.decisions(*"xxxxx") == ["allow", "allow", "warn", "warn", "stop"]
    assert run.decisions(*"xxxxx") == ["allow", "allow", "warn", "warn", "stop"]


def test_the_last_action_repeats_and_one_may_be_to_continue(under):
    assert under("balanced", graduated_rungs=["warn"]).decisions(*"xxxxxx") == ["allow"] * 2 + ["warn"] * 4
    watched = under("balanced", "s-2", graduated_rungs=["observe", "stop"])
    verdicts = [watched.call() for _ in range(4)]
    assert [one["decision"] for one in verdicts] == ["allow", "allow", "allow", "stop"]
    assert (verdicts[2]["rung"], verdicts[2]["detection_number"]) == ("observe", 1)


def test_a_warning_is_a_result_and_an_end_has_the_advice(under):
    run = under("balanced")
    warned, _, ended = [run.call() for _ in range(5)][2:]
    assert warned["rendered"] == {"role": "tool", "tool_call_id": "s-1-c3", "content": warned["message"]}
    for part in ("'search'", "3 times", "different approach", "ask the user for help"):
        assert part in warned["message"]
    assert ended["rendered"]["choices"][0]["finish_reason"] == "error"
    assert "Adjust the inputs or the strategy" in ended["message"]
    shaped = run.api.post("/guard?render=anthropic", {"session": "s-2", "calls": [
        {"call_id": f"a{n}", "tool": "t", "round": str(n)} for n in range(3)
    ]}).json()["verdicts"]  # fmt: skip
    assert [(one["decision"], (one["rendered"] or {}).get("is_error")) for one in shaped][-1] == (
        "warn",
        False,
    )


@pytest.mark.parametrize(
    ("preset", "script", "decisions"),
    [
        ("conservative", "xxxx", {}),
        ("conservative", "xxxxxxxx", {5: "warn", 6: "warn", 7: "warn", 8: "stop"}),
        ("conservative", "abababab", {}),
        ("conservative", "abcabcabc", {9: "warn"}),
        ("aggressive", "xxx", {2: "warn", 3: "stop"}),
        ("aggressive", "abcdabcd", {5: "warn", 6: "stop"}),
    ],
)
def test_the_other_presets_have_their_own_limits_and_actions(under, preset, script, decisions):
    assert {at: one["decision"] for at, one in under(preset).letters(script).items()} == decisions


@pytest.mark.parametrize(
    ("one", "two", "three"),
    [
        (
            {"q": "reset my password now 1"},
            {"q": "reset my password now 2"},
            {"q": "reset my password now 3"},
        ),
        (
            dict.fromkeys("abcdef", 1),
            dict.fromkeys("abcdef", 1) | {"f": 2},
            dict.fromkeys("abcdef", 1) | {"f": 3},
        ),
        ({"l": [1, 1, 1, 1, 1, 1]}, {"l": [1, 1, 1, 1, 1, 2]}, {"l": [1, 1, 1, 1, 1, 3]}),
    ],
)
def test_calls_of_one_tool_with_similar_arguments_are_found(under, one, two, three):
    run = under("similarity")
    found = [run.call(arguments=arguments)["finding"] for arguments in (one, two, three)]
    assert [finding and finding["kind"] for finding in found] == [None, None, "similar"]
    others = Run(run.api, "s-2")
    assert [others.call(f"tool-{n}", one)["finding"] for n in range(3)] == [None] * 3


@pytest.mark.parametrize(
    "calls",
    [
        [{"q": "ls"}, {"q": "ls -la"}, {"q": "ls -l"}],
        [{"page": 1, "q": "x"}, {"page": 2, "q": "x"}, {"page": 3, "q": "x"}],
        [{"l": [1, 2]}, {"l": [1, 2, 3]}, {"l": [1, 2, 3, 4]}],
        [{"q": "foo"}, {"q": "fo0"}, {"q": "f00"}],
    ],
)
def test_these_arguments_are_not_similar(under, calls):
    run = under("similarity")
    assert [run.call(arguments=arguments)["finding"] for arguments in calls] == [None] * 3


ALIKE = json.dumps({"items": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], "state": "none"})


@pytest.mark.parametrize(
    ("results", "is_found"),
    [
        (["", "", ""], True),
        (["no such file", "no such file", "no such file"], True),
        ([ALIKE, json.dumps(json.loads(ALIKE), indent=2), ALIKE], True),
        (["the build of service 1 failed at once", "the build of service 2 failed at once",
          "the build of service 3 failed at once"], True),
        (["10 % done", "40 % done, eta 3 min", "finished: 12 files"], False),
        (["timeout", ("timeout", True), "timeout"], False),
    ],
)  # fmt: skip
def test_repeated_results_with_the_same_error_flag_are_found_however_the_arguments_change(
    under, results, is_found
):
    run = under("similarity", similar_enabled=False)
    for number, result in enumerate(results):
        text, is_error = result if isinstance(result, tuple) else (result, False)
        run.call(arguments={"q": ("alpha", "b", "something else")[number]}, result=text, is_error=is_error)
    notices = run.call("another", {})["notices"]
    assert [one["finding"]["kind"] for one in notices] == ["outcome"] * is_found


def test_runs_of_a_session_are_counted_apart(under):
    run = under("balanced")
    assert [run.call(run=name)["decision"] for name in ("r1", "r1", "r2", "r2")] == ["allow"] * 4
    assert run.call(run="r1")["decision"] == "warn"


def test_a_resumed_session_starts_over(under, api):
    run = under("balanced")
    assert run.decisions(*"xx") == ["allow"] * 2
    api.post("/sessions/s-1/stop", {"reason": "start over"})
    assert api.post("/sessions/s-1/resume").status_code == 200
    assert run.decisions(*"xxx") == ["allow", "allow", "warn"]


def test_detection_works_without_a_configuration_and_can_be_turned_off(api):
    assert Run(api).decisions(*"xxxx") == ["allow"] * 3 + ["block"]
    api.put("/overrides", {"values": {"enabled": False}})
    assert Run(api, "s-2").decisions(*"xxxxxx") == ["allow"] * 6


def test_a_tool_has_its_own_limit_or_none(under, api):
    run = under("proxy")
    api.put("/tool-rules/write_*", {"values": {"max_repeats": 2}})
    api.put("/tool-rules/search", {"exempt": True})
    assert run.decisions(*[("write_file", {})] * 2) == ["allow", "stop"]
    assert run.decisions(*[("search", {})] * 6) == ["allow"] * 6
    assert run.decisions(*[("read", {})] * 4) == LOOP


def test_calls_may_be_compared_by_the_names_of_their_tools(under):
    assert under("proxy", identity="tool").decisions({"q": 1}, {"q": 2}, {"q": 3}, {"q": 4}) == LOOP
    found = under("balanced", "s-2", identity="tool")
    verdicts = [found.call(tool, {"q": at}) for at, tool in enumerate(("read", "edit") * 2)]
    assert verdicts[-1]["finding"]["pattern"] == ["read", "edit"]


# 002: warnings only


def test_every_identical_call_from_the_second_on_is_warned_about_and_none_is_blocked(
    under, caplog, django_capture_on_commit_callbacks
):
    caplog.set_level(logging.WARNING, logger="detection")
    run = under("advisory")
    with django_capture_on_commit_callbacks(execute=True):
        verdicts = [run.call(result="5 hits") for _ in range(6)]
    assert [one["decision"] for one in verdicts] == ["allow"] + ["warn"] * 5
    for number, verdict in enumerate(verdicts[1:], 2):
        for part in (
            "WARNING",
            f"call #{number} to 'search'",
            "identical parameters",
            "may be in a loop",
            "final answer",
        ):
            assert part in verdict["message"]
    lines = [one.msg for one in caplog.records if one.msg["event"] == "loop_detected"]
    assert [(one["tool"], one["count"]) for one in lines] == [("search", number) for number in range(2, 7)]


def test_a_failing_call_is_warned_about_too_and_interleaved_ones_count(under):
    run = under("advisory")
    assert run.call(result="no access", is_error=True)["decision"] == "allow"
    assert run.call(arguments={"q": "y"})["decision"] == "allow"
    assert run.call(result="no access", is_error=True)["decision"] == "warn"


def test_arguments_count_as_received(under):
    run = under("advisory")
    assert run.decisions('{"a": 1}', '{"a":1}', '{ "a": 1}') == ["allow"] * 3
    assert run.decisions(("other", '{"a": 1}'), '{"a": 1}') == ["allow", "warn"]


def test_each_run_has_its_own_history_and_a_message_of_the_user_begins_one(under, api):
    named = under("advisory")
    assert [named.call(run=run)["decision"] for run in ("r1", "r1", "r2", "r2")] == ["allow", "warn"] * 2
    run = Run(api, "s-2")
    assert run.decisions("x", "x") == ["allow", "warn"]
    message = {"type": "message", "session": "s-2", "role": "user", "content": "And now the other one."}
    assert api.post("/events", {"events": [message]}).status_code == 202
    assert run.decisions("x", "x") == ["allow", "warn"]


def test_the_limit_of_warnings_can_be_set(under):
    assert under("advisory", max_repeats=4).decisions(*"xxxxx") == ["allow"] * 3 + ["warn"] * 2


def test_a_high_limit_of_rounds_ends_in_an_answer_and_not_before(under):
    run = under(
        "advisory",
        budget_enabled=True,
        budget_max_rounds=6,
        budget_soft_rounds=False,
        budget_ladder=["finish"],
    )
    verdicts = [run.call(arguments={"q": n}, round=f"r{n}") for n in range(6)]
    assert [one["decision"] for one in verdicts] == ["allow"] * 5 + ["block"]
    assert verdicts[-1]["ending"] == "finish"


# 003: the prompt


def decide(api, verdict, choice, **more):
    told = api.post(f"/approvals/{verdict['approval']['id']}/decision", {"choice": choice, **more})
    assert told.status_code == 200, told.text
    return told.json()


def until_held(run, times=4, **call):
    verdicts = [run.call(**call) for _ in range(times)]
    assert [one["decision"] for one in verdicts] == ["allow"] * (times - 1) + ["hold"]
    return verdicts[-1]


def test_the_fourth_call_of_a_signature_asks_even_if_others_are_between(under):
    run = under("interactive")
    assert run.decisions(*"xyxyx") == ["allow"] * 5
    verdict = run.call(arguments="x")
    assert (verdict["decision"], verdict["finding"]["count"]) == ("hold", 4)


def test_keep_skips_the_call_and_every_counter_starts_over(under, api):
    run = under("interactive")
    assert run.decisions(*"yyy") == ["allow"] * 3
    told = decide(api, until_held(run), "skip")
    assert (told["decision"], told["choice"]) == ("block", "skip")
    assert run.decisions(*"yyy") == ["allow"] * 3
    assert until_held(run)["finding"]["count"] == 4


def test_disable_runs_the_call_and_all_later_ones_of_the_session_only(under, api):
    run = under("interactive")
    assert decide(api, until_held(run), "disable")["decision"] == "allow"
    assert run.decisions(*"xxxxxx", *[("read", {})] * 6) == ["allow"] * 12
    assert api.get("/sessions/s-1").json()["policy_values"] == {"enabled": False}
    until_held(Run(api, "s-2"))


def test_detection_is_turned_off_and_on_for_a_session_and_calls_in_between_do_not_count(under, api):
    run = under("interactive")
    assert run.decisions(*"xx") == ["allow"] * 2
    api.patch("/sessions/s-1/policy", {"enabled": False})
    assert run.decisions(*"xxxxxx") == ["allow"] * 6
    api.patch("/sessions/s-1/policy", {"enabled": None})
    assert run.decisions(*"xx") == ["allow", "hold"]


def test_without_prompts_the_call_over_the_limit_halts_the_run(under, api):
    assert under("interactive", mode="break", max_repeats=3).decisions(*"xxx") == ["allow", "allow", "stop"]
    assert api.get("/approvals").json()["items"] == []


@pytest.mark.parametrize(("reaction", "decision"), [("stop", "stop"), ("disable", "allow")])
def test_a_prompt_that_nobody_answers_ends_as_the_setting_says(under, api, reaction, decision):
    verdict = until_held(under("interactive", unattended_reaction=reaction, answer_timeout_seconds=1))
    time.sleep(1.1)
    told = api.get(f"/approvals/{verdict['approval']['id']}").json()
    assert (told["state"], told["decision"]) == ("expired", decision)


def test_the_steps_of_a_turn_are_limited(under):
    run = under(
        "interactive",
        budget_enabled=True,
        budget_max_rounds=6,
        budget_soft_rounds=False,
        budget_ladder="break",
    )
    verdicts = [run.call(arguments={"q": n}, round=f"r{n}") for n in range(6)]
    assert [one["decision"] for one in verdicts] == ["allow"] * 5 + ["stop"]
    assert verdicts[-1]["finding"]["kind"] == "budget"


def test_a_choice_is_remembered_for_later_sessions(under, api):
    decide(api, until_held(under("interactive")), "skip", remember=True)
    later = Run(api, "s-2")
    assert later.decisions(*[{"q": "x"}] * 4) == ["allow"] * 3 + ["block"]


def test_a_run_is_limited_in_time(under):
    run = under("interactive", budget_enabled=True, budget_max_seconds=1, budget_ladder="break")
    assert run.decisions(*"ab") == ["allow"] * 2
    time.sleep(1.1)
    verdict = run.call(arguments="c")
    assert (verdict["decision"], verdict["finding"]["kind"]) == ("stop", "budget")


def test_one_tool_with_other_arguments_can_be_a_loop_too(api):
    run, found = Run(api), []
    for name in ("a", "report", "2024/index", "user?id=5", "x/y/z", "last", "more"):
        verdict = run.call("fetch", {"url": f"https://example.org/{name}"}, "not found")
        found += [one["finding"]["kind"] for one in (verdict, *verdict["notices"]) if one["finding"]]
    assert "outcome" in found


# 004: the justification


class Judge:
    """A judge with an answer, and the run that it rules on."""

    def __init__(self, api, settings, run):
        self.api, self.settings, self.run = api, settings, run

    def rule(self, answer, *, limit=5, answers="words", request="", first=0):
        """Lead the run over its limit; the approval after the judge has answered."""
        with JudgeServer(lambda body: answer(body) if callable(answer) else answer).running() as server:
            self.settings.JUDGE = JudgeEndpoint(url=server.url, model="judge-1", answers=answers)
            if request:
                self.api.post(
                    "/events", {"events": [{"type": "message", "session": "s-1", "content": request}]}
                )
            self.before = self.rounds(limit, first)
            self.held = self.rounds(1, first + limit)[0]
            state = self.api.get("/sessions/s-1").json()["state"]
            assert (self.held["decision"], state) == ("hold", "held")
            approval = Approval.objects.get(public_id=self.held["approval"]["id"])
            judge_consultation.consult_judge(approval.public_id, approval.project_id)
        self.requests = server.requests
        return self.api.get(f"/approvals/{self.held['approval']['id']}").json()

    def rounds(self, count, first):
        """One call a round, each of them another one."""
        return [
            self.run.call(arguments={"q": n}, round=f"r{n}", result=f"page {n}")
            for n in range(first, first + count)
        ]


@pytest.fixture
def judged(under, api, settings, monkeypatch):
    """A run whose 6th round is put to a judge, with five rounds for an extension."""
    monkeypatch.setattr(secrets, "randbelow", lambda n: 1)  # no decoys
    run = under("justified", budget_max_rounds=6, budget_extension_rounds=5)
    return Judge(api, settings, run)


def test_forty_rounds_of_any_work_pass_and_the_next_is_put_to_the_judge(judged, under):
    judged.run = under("justified", judge_sees_request=True)
    told = judged.rule(
        completion("JUSTIFICATION ACCEPTED: many files"), limit=40, request="Analyse the whole project."
    )
    assert [one["decision"] for one in judged.before] == ["allow"] * 40
    assert (told["decision"], told["decided_by"]) == ("allow", "judge")
    (asked,) = judged.requests
    assert (asked["temperature"], asked["max_tokens"]) == (0.3, 500)
    text = " ".join(one["content"] for one in asked["messages"])
    for part in (
        "Analyse the whole project.",
        "new results",
        "inherently complex",
        "varied",
        "smaller steps",
    ):
        assert part in text


@pytest.mark.parametrize(
    "text",
    [
        "JUSTIFICATION ACCEPTED: many files. GUIDANCE: be brief.", "Justification Accepted - go on",
        "✅ go ahead", "Accepted.",
    ],
)  # fmt: skip
def test_an_answer_that_accepts_lets_the_run_go_on_once(judged, text):
    told = judged.rule(completion(text))
    assert (told["decision"], told["decided_by"]) == ("allow", "judge")
    assert [one["decision"] for one in judged.rounds(6, 10)] == ["allow"] * 4 + ["stop"] * 2


@pytest.mark.parametrize(
    "answer",
    [
        completion("JUSTIFICATION DENIED: repeats itself."), completion("❌ no"), completion("denied"), completion("❌ JUSTIFICATION DENIED: this cannot be accepted."),
        completion("This is not accepted."), completion("Hard to say, it depends."), completion(""), (500, b"", {}), (200, b"{", {}),
    ],
)  # fmt: skip
def test_every_other_answer_stops_the_run_with_advice(judged, api, answer):
    told = judged.rule(answer)
    assert (told["decision"], told["decided_by"]) == ("stop", "judge")
    assert "smaller steps" in told["message"]
    assert api.get("/sessions/s-1").json()["state"] == "stopped"
    assert api.get(f"/incidents/{judged.held['incident']}").json()["decision"] == "stop"


def test_an_acceptance_hands_its_guidance_over_and_grants_rounds(judged, api):
    told = judged.rule(
        lambda body: completion(ruling(body, extra_rounds=2, guidance="Summarise first.")), answers="json"
    )
    ruled = api.get(f"/approvals/{told['id']}/ruling").json()
    assert (ruled["outcome"], ruled["rounds_granted"], ruled["guidance"]) == (
        "accepted",
        2,
        "Summarise first.",
    )
    assert "Summarise first." in told["message"]
    assert [one["decision"] for one in judged.rounds(3, 10)] == ["allow", "stop", "stop"]


def test_a_run_close_to_its_limit_has_a_notice(judged, under, api):
    judged.run = under("justified")
    judged.rounds(34, 0)
    assert not api.get("/sessions/s-1").json()["limit_notices"]
    judged.rounds(1, 34)
    (notice,) = api.get("/sessions/s-1").json()["limit_notices"]
    assert (notice["unit"], notice["used"]) == ("rounds", 35)


def test_a_soft_limit_tells_work_from_a_loop_by_its_results(under):
    values = {
        "budget_max_rounds": 22,
        "budget_soft_rounds": True,
        "budget_ladder": "break",
        "budget_enabled": True,
    }
    working = under("justified", **values)
    found = [
        working.call(arguments={"q": n}, round=f"r{n}", result=f"page {n}")["decision"] for n in range(26)
    ]
    assert found == ["allow"] * 26
    stuck = under("justified", "s-2", **values)
    found = [stuck.call(arguments={"q": n}, round=f"r{n}", result="nothing")["decision"] for n in range(22)]
    assert found == ["allow"] * 21 + ["stop"]
