"""Trees of sub-agents, over the guard and the hooks: repeated prompts, and trees that are too wide or too deep."""

import itertools

import pytest

from detection.models import Incident, Session, SessionFamily
from detection.services.sessions.evaluation import evaluate
from tests.support.statements import round_trips, sent_messages


class Tree:
    """Sessions that start others; call ids count up by themselves."""

    def __init__(self, api):
        self.api, self.numbers = api, itertools.count()

    def asks(self, session, tool, arguments, parent=""):
        number = next(self.numbers)
        body = {
            "session": session,
            "calls": [{"tool": tool, "arguments": arguments, "call_id": f"c{number}"}],
        }
        body |= {"parent_session": parent} if parent else {}
        verdict = self.api.post("/guard", body).json()["verdicts"][0]
        if verdict["decision"] in ("allow", "warn"):
            done = {"call_id": f"c{number}", "content": f"report {number * 7919} of {tool}"}
            self.api.post("/guard", {"session": session, "results": [done]})
        return verdict

    def starts(self, session, prompt, parent="", tool="Task"):
        arguments = {
            "description": f"step {next(self.numbers) * 31}",
            "prompt": prompt,
            "subagent_type": "general",
        }
        return self.asks(session, tool, arguments, parent)

    def works(self, session, parent=""):
        return self.asks(session, "read_page", {"page": f"{session} {next(self.numbers) * 17}"}, parent)


@pytest.fixture
def tree(api):
    return Tree(api)


def found():
    return [(one.kind, one.evidence["detail"]["unit"], one.count) for one in Incident.objects.order_by("pk")]


def kind_of(verdict):
    return verdict["finding"] and (
        verdict["decision"],
        verdict["finding"]["kind"],
        verdict["finding"]["count"],
    )


@pytest.mark.parametrize(
    "spelling",
    ["Find every caller of parse()", "find every  caller\nof PARSE()"],
    ids=["same", "other spelling"],
)
def test_the_fourth_sub_agent_of_a_tree_with_one_prompt_is_warned_about(tree, spelling):
    verdicts = [
        tree.starts(session, prompt, parent)
        for session, parent, prompt in (
            ("lead", "", "Find every caller of parse()"), ("a", "lead", spelling), ("b", "lead", spelling),
            ("c", "b", spelling),
        )
    ]  # fmt: skip
    assert [kind_of(one) for one in verdicts] == [None, None, None, ("warn", "spawns", 4)]
    assert "4 sub-agents of one tree got the same prompt" in verdicts[-1]["message"]
    assert "loop" not in verdicts[-1]["message"].lower()
    assert found() == [("spawns", "repeats", 4)]


def test_other_prompts_other_trees_and_other_tools_are_left_alone(tree):
    for n in range(12):
        assert tree.starts("lead", f"Translate chapter {n}")["finding"] is None
        assert tree.starts(f"lead {n}", "Translate it")["finding"] is None
        assert tree.asks("clerk", "TaskCreate", {"subject": f"step {n}", "prompt": "Do"})["finding"] is None
    assert found() == []


def test_the_user_may_ask_for_the_same_sub_agent_again(api, tree):
    for n in range(6):
        api.post("/events", {"session": "lead", "type": "message", "content": f"Review it again, round {n}"})
        evaluate(Session.objects.get(external_id="lead").key)
        assert tree.starts("lead", "Review the change")["finding"] is None


def test_sub_agents_are_seen_that_a_dispatching_tool_starts(tree):
    for n in range(4):
        inner = {"message": "Find every caller of parse()", "agent_type": f"worker {n}"}
        arguments = {"server_name": "crew", "tool_name": "spawn_agent", "arguments": inner}
        verdict = tree.asks("lead", "use_mcp_tool", arguments)
    assert kind_of(verdict) == ("warn", "spawns", 4)


@pytest.mark.parametrize("spawn", ["Task", "spawn_agent", "mcp__crew__delegate_task"])
def test_a_session_that_starts_more_than_thirty_is_warned_and_thirty_are_work(tree, spawn):
    verdicts = [tree.starts("lead", f"Check module {n}", tool=spawn) for n in range(31)]
    assert [kind_of(one) for one in verdicts if one["finding"]] == [("warn", "spawns", 31)]
    assert verdicts.index(next(one for one in verdicts if one["finding"])) == 30
    assert found() == [("spawns", "children", 31)]


def test_a_warning_comes_again_when_the_count_has_doubled(tree):
    verdicts = [tree.starts("lead", "Look into it") for _ in range(18)]
    assert [kind_of(one) for one in verdicts if one["decision"] == "warn"] == [
        ("warn", "spawns", 4), ("warn", "spawns", 8), ("warn", "spawns", 16),
    ]  # fmt: skip


def test_children_without_a_call_that_starts_them_are_counted_by_their_parent(tree):
    verdicts = [tree.works(f"child {n}", "lead") for n in range(31)]
    assert [kind_of(one) for one in verdicts if one["finding"]] == [("warn", "spawns", 31)]


def test_a_child_that_was_seen_to_be_started_counts_once(tree):
    for n in range(30):
        tree.starts("lead", f"Check module {n}")
        assert tree.works(f"child {n}", "lead")["finding"] is None
        assert tree.works(f"child {n}", "lead")["finding"] is None
    assert found() == []


def test_a_tree_deeper_than_three_levels_is_warned(tree):
    line = ["top", "1st", "2nd", "3rd", "4th"]
    verdicts = [tree.works(session, parent) for parent, session in zip(["", *line], line, strict=False)]
    assert [kind_of(one) for one in verdicts] == [None] * 4 + [("warn", "spawns", 4)]
    assert "4 levels of sub-agents" in verdicts[-1]["message"]
    assert kind_of(tree.starts("3rd", "Go on", "2nd")) == ("warn", "spawns", 4)
    assert tree.starts("2nd", "Go on", "1st")["finding"] is None


@pytest.mark.parametrize(
    ("limit", "about"),
    [
        ("spawns_max_total", "5 sub-agents of one tree were started"),
        ("spawns_max_per_minute", "within a minute"),
    ],
)
def test_limits_of_the_whole_tree_hold_what_goes_beyond_with_a_strict_ladder(api, tree, limit, about):
    api.put("/overrides", {"values": {limit: 5, "spawns_ladder": "block"}})
    decisions = [tree.starts(session, f"part of {session}", "lead")["decision"] for session in "ab"]
    assert decisions == ["allow", "allow"]  # `a` and `b` are sub-agents, too, so these are four
    last = tree.starts("lead", "part 9")
    assert last["decision"] == "block"
    assert about in last["message"]
    assert tree.works("lead")["decision"] == "allow"


def test_nothing_is_found_or_stored_where_trees_are_not_watched(api, tree):
    api.put("/overrides", {"values": {"spawns_enabled": False}})
    for _ in range(5):
        tree.starts("lead", "Find every caller")
        tree.works("child", "lead")
    assert not [one for one in found() if one[0] == "spawns"]
    assert not SessionFamily.objects.exists()


def test_hooks_show_sub_agents_that_start_one_another_with_the_same_prompt(api):
    answers = []
    for number in range(8):
        body = {
            "session_id": "5d1c", "cwd": "/src", "hook_event_name": "PreToolUse", "tool_name": "Agent",
            "tool_use_id": f"t{number}", "tool_input": {"description": f"part {number // 2}", "prompt": f"Research {number % 2}"},
        }  # fmt: skip
        agent = {"agent_id": f"ag{number}", "agent_type": "Explore"} if number else {}
        answers.append(api.post("/hooks/claude-code", body | agent).text)
    assert ["the same prompt" in one for one in answers] == [False] * 6 + [True] * 2


def test_sub_agents_that_read_the_same_file_once_each_are_no_finding(api):
    for number in range(10):
        body = {
            "session_id": "5d1c", "cwd": "/src", "hook_event_name": "PreToolUse", "tool_name": "Read",
            "tool_use_id": f"t{number}", "tool_input": {"file_path": "/src/CLAUDE.md"}, "agent_id": f"ag{number}",
            "agent_type": "Explore",
        }  # fmt: skip
        assert "Context" not in api.post("/hooks/claude-code", body).text
    assert found() == []


def test_only_calls_that_may_show_a_new_sub_agent_lock_the_tree(api, tree):
    tree.works("alone")
    tree.works("child", "lead")
    costs = {}
    for case, session, parent in (("alone", "alone", ""), ("sub-agent", "child", "lead")):
        with sent_messages() as sent:
            tree.works(session, parent)
        costs[case] = round_trips(sent)
    with sent_messages() as sent:
        tree.starts("alone", "Look")
    costs["starts"] = round_trips(sent)
    # Guard and its result: each reads the top of a sub-agent once.
    assert costs["sub-agent"] == costs["alone"] + 2
    assert costs["starts"] == costs["alone"] + 1
    assert [one.name for one in SessionFamily.objects.order_by("name")] == ["alone", "lead"]
