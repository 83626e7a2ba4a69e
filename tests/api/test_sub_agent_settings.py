"""Settings of sub-agents: what the session that started the tree, and its agent, hand down."""

import pytest

from tests.support.statements import round_trips, sent_messages

GREP = {"tool": "grep", "arguments": {"pattern": "parse_header"}}


class Tree:
    """Sessions of which each has an agent of the same name."""

    def __init__(self, api):
        self.api, self.number = api, 0

    def asks(self, session, parent="", **more):
        self.number += 1
        body = {
            "session": session,
            "agent": f"agent of {session}",
            "calls": [GREP | {"call_id": f"c{self.number}"}],
        }
        body |= {"parent_session": parent} if parent else {}
        return self.api.post("/guard", body | more).json()["verdicts"][0]

    def limit(self, session):
        found = self.api.get("/policy", session=session).json()["policy"]["max_repeats"]
        return found["value"], found["source"]


@pytest.fixture
def tree(api):
    tree = Tree(api)
    tree.asks("top")
    tree.asks("middle", "top")
    tree.asks("leaf", "middle")
    tree.asks("alone")
    return tree


def test_the_narrowest_wins_and_a_sub_agent_inherits_from_its_top_and_the_agent_of_that(api, tree):
    settings = (
        ("/overrides", {"values": {"max_repeats": 11}}, "project"),
        ("/agent-overrides/agent of top", {"values": {"max_repeats": 12}}, "agent:agent of top"),
        ("/sessions/top/policy", {"max_repeats": 13}, "top_session"),
        ("/agent-overrides/agent of leaf", {"values": {"max_repeats": 14}}, "agent:agent of leaf"),
        ("/sessions/leaf/policy", {"max_repeats": 15}, "session"),
    )  # fmt: skip
    for value, (path, body, source) in enumerate(settings, 11):
        changed = api.patch(path, body) if path.startswith("/sessions") else api.put(path, body)
        assert changed.status_code == 200, changed.text
        assert tree.limit("leaf") == (value, source)
    assert tree.limit("top") == (13, "session")
    assert tree.limit("middle") == (13, "top_session")
    assert tree.limit("alone") == (11, "project")


def test_the_agent_of_a_session_between_hands_nothing_down(api, tree):
    api.put("/agent-overrides/agent of middle", {"values": {"max_repeats": 12}})
    assert tree.limit("middle")[0] == 12
    assert tree.limit("leaf")[0] == 4
    api.patch("/sessions/middle/policy", {"max_repeats": 13})
    assert tree.limit("leaf")[0] == 4


def test_what_the_top_changes_holds_for_the_next_call_of_a_sub_agent_and_its_verdict_says_so(api, tree):
    for _ in range(2):
        tree.asks("leaf")
    assert tree.asks("leaf")["decision"] == "block"
    api.patch("/sessions/top/policy", {"max_repeats": 9})
    verdict = tree.asks("leaf")
    assert verdict["decision"] in ("allow", "warn")
    assert tree.limit("leaf") == (9, "top_session")
    api.patch("/sessions/top/policy", {"max_repeats": None})
    assert tree.asks("leaf")["decision"] != "allow"


def test_a_chat_command_of_the_top_holds_for_its_sub_agents(api, tree):
    api.post("/sessions/top/commands", {"text": "!/set(tool-loop-max-repeats=7)"})
    assert tree.limit("leaf") == (7, "top_session")
    reply = api.post("/sessions/leaf/commands", {"text": "!/set(tool-loop-preset=balanced)"}).json()
    assert "max-repeats stays 7 (from top_session)" in " ".join(reply["lines"])


@pytest.mark.parametrize("parents", [{"a": "b", "b": "a"}, {"a": "a"}, {"a": "missing"}], ids=str)
def test_without_a_top_nothing_is_inherited_and_a_call_is_judged(api, parents):
    tree = Tree(api)
    for session, parent in parents.items():
        api.put(f"/agent-overrides/agent of {parent}", {"values": {"max_repeats": 12}})
        tree.asks(session, parent)
    assert tree.limit("a")[1] != "top_session"
    assert tree.asks("a")["decision"] in ("allow", "warn")


def test_hooks_of_a_sub_agent_are_judged_by_the_limits_of_the_agent_that_started_it(api):
    api.put("/agent-overrides/claude-code", {"values": {"max_repeats": 6}})
    api.put("/agent-overrides/reviewer", {"values": {"ttl_seconds": 600}})
    refused = []
    for number in range(6):
        body = {
            "session_id": "5d1c", "cwd": "/src", "hook_event_name": "PreToolUse", "tool_name": "Bash",
            "tool_input": {"command": "make test"}, "tool_use_id": f"t{number}",
        }  # fmt: skip
        api.post(
            "/hooks/claude-code",
            body | {"tool_use_id": f"top{number}", "tool_input": {"command": f"ls {number}"}},
        )
        answer = api.post("/hooks/claude-code", body | {"agent_id": "ag1", "agent_type": "reviewer"}).text
        refused.append('"deny"' in answer)
    assert refused == [False] * 5 + [True]


def test_a_session_without_a_parent_pays_nothing_and_a_sub_agent_one_round_trip(api, tree):
    costs = []
    for session in ("alone", "leaf"):
        tree.asks(session)
        with sent_messages() as sent:
            tree.asks(session)
        costs.append(round_trips(sent))
    assert costs[1] == costs[0] + 1


def test_settings_of_a_tag_apply_to_the_agents_with_it_below_their_own(api, tree):
    override = "/agent-overrides/tag:checkout"
    assert api.put(override, {"values": {"max_repeats": 12}}).status_code == 200
    api.put("/overrides", {"values": {"max_repeats": 11}})
    assert tree.limit("alone") == (11, "project")
    api.put("/agents/agent of alone/tags", {"tags": ["checkout", "eu"]})
    assert tree.limit("alone") == (12, "agent:tag:checkout")
    assert tree.limit("top") == (11, "project")
    api.put("/agent-overrides/tag:eu", {"values": {"max_repeats": 13}})
    assert tree.limit("alone") == (13, "agent:tag:eu")
    api.put("/agent-overrides/agent of alone", {"values": {"max_repeats": 14}})
    assert tree.limit("alone") == (14, "agent:agent of alone")
    for path in ("/agent-overrides/agent of alone", "/agent-overrides/tag:eu"):
        assert api.delete(path).is_success
    api.put("/agents/agent of alone/tags", {"tags": []})
    assert tree.limit("alone") == (11, "project")


def test_a_limit_of_a_tag_decides_the_next_call_and_holds_for_sub_agents(api, tree):
    assert api.put("/agent-overrides/tag:strict", {"values": {"max_repeats": 2}}).status_code == 200
    api.put("/agents/agent of top/tags", {"tags": ["strict"]})
    assert tree.limit("leaf") == (2, "agent:tag:strict")
    decisions = {name: tree.asks(name)["decision"] for name in ("top", "alone")}
    assert (decisions["top"] != "allow", decisions["alone"]) == (True, "allow")


def test_a_tag_costs_a_call_no_query(api, tree):
    api.put("/agent-overrides/tag:strict", {"values": {"max_repeats": 50}})
    api.put("/agents/agent of top/tags", {"tags": ["strict"]})
    tree.asks("top")
    tree.asks("alone")

    def fewest(name):
        """What is cached for a second may be read again in one of them."""
        counts = []
        for _ in range(3):
            with sent_messages() as sent:
                tree.asks(name)
            counts.append(round_trips(sent))
        return min(counts)

    assert fewest("top") == fewest("alone")
