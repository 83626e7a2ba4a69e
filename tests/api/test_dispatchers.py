"""Tools that call another tool: the call is judged, counted and named by what it dispatches."""

from typing import Any

import pytest

from detection.models import Event, Incident, Session
from detection.services.sessions.evaluation import evaluate
from tests.api.test_directories import Agent
from tests.api.test_exceptions import except_

SEARCH = {
    "tool": "use_mcp_tool",
    "arguments": {"server_name": "docs", "tool_name": "search_docs", "arguments": '{"q": "reset"}'},
}
NAME = "use_mcp_tool → search_docs"


def of(tool, arguments, server="docs"):
    """A call of a tool of a server."""
    return {
        "tool": "use_mcp_tool",
        "arguments": {"server_name": server, "tool_name": tool, "arguments": arguments},
    }


def decisions(api, call, times, content="0 hits", **more):
    agent = Agent(api, **more)
    return [agent.step(call, content) for _ in range(times)]


@pytest.mark.parametrize(
    "call",
    [
        SEARCH,
        {"tool": "call_tool", "arguments": {"name": "search_docs", "arguments": {"q": "reset"}}},
        {"tool": "ppt", "arguments": {"tool": "search_docs", "q": "reset"}},
        {"tool": "run_code", "arguments": {"code": "return await tools.search_docs({q: 'reset'})"}},
        {
            "tool": "batch",
            "arguments": {"tool_calls": [{"tool": "search_docs", "parameters": {"q": "reset"}}]},
        },
    ],
    ids=["mcp", "any", "flat", "code", "list"],
)
def test_calls_incidents_messages_and_statistics_name_both_tools(api, call):
    assert decisions(api, call, 4)[-1] == "block"
    name = f"{call['tool']} → search_docs"
    assert {event.tool for event in Event.objects.filter(type="call")} == {name}
    assert Incident.objects.get().tool == name
    last = api.get("/sessions/s-1/calls").json()["items"][-1]
    assert name in last["message"]
    assert last["tool"] == name
    assert [row["key"] for row in api.get("/statistics", by="tool").json()["items"]] == [name]


def test_the_class_is_that_of_the_dispatched_tool(api):
    status = of("get_build_status", {"id": 77})
    assert set(decisions(api, status, 8, '{"state":"running"}')) == {"allow"}
    waiting = of("sleep", {"seconds": 5})
    assert set(decisions(api, waiting, 8, "ok", session="s-2")) == {"allow"}
    assert "block" in decisions(api, of("fetch_page", {"id": 77}), 5, "a page", session="s-3")


def test_series_are_counted_by_what_is_dispatched(api):
    agent = Agent(api)
    tools = [f"{verb}_account" for verb in ("open", "lock", "name", "rate", "move", "tax", "post", "free")]
    kept = [agent.step(of(tool, {"id": number}), f"done with {tool}") for number, tool in enumerate(tools)]
    assert set(kept) == {"allow"}
    other = Agent(api, "s-2")
    failed = [other.step(of("search_docs", {"q": f"word {n}"}), "Error: 401 not signed in") for n in range(6)]
    assert set(failed) != {"allow"}
    assert Incident.objects.get().tool == NAME


def test_one_name_on_two_servers_is_two_tools(api):
    agent = Agent(api)
    calls = [of("search_docs", {"q": "a"}, f"server-{number}") for number in range(3)]
    assert {agent.step(call, f"found {n}") for n, call in enumerate(calls)} == {"allow"}
    assert len(set(Event.objects.filter(type="call").values_list("call_key", flat=True))) == 3


@pytest.mark.parametrize("pattern", ["search_docs", "search_*", "use_mcp_tool", NAME, "use_mcp_tool → *"])
def test_a_tool_rule_may_name_either_tool_or_both(api, pattern):
    assert api.put(f"/tool-rules/{pattern}", {"exempt": True, "note": "ours"}).is_success
    assert set(decisions(api, SEARCH, 6)) == {"allow"}


def test_the_rule_of_the_dispatched_tool_wins_over_that_of_its_dispatcher(api):
    assert api.put("/tool-rules/use_mcp_tool", {"values": {"max_repeats": 9}, "note": "ours"}).is_success
    assert api.put("/tool-rules/search_docs", {"values": {"max_repeats": 3}, "note": "ours"}).is_success
    assert decisions(api, SEARCH, 3)[-1] == "block"
    assert "block" not in decisions(api, of("find_user", {"id": 3}), 5, session="s-2")


def test_an_exception_from_the_incident_spares_the_dispatched_tool_alone(api):
    decisions(api, SEARCH, 4)
    except_(api, f"/incidents/{Incident.objects.get().public_id}/exceptions", "tool:exempt")
    assert set(decisions(api, SEARCH, 6, session="s-2")) == {"allow"}
    assert "block" in decisions(api, of("find_user", {"id": 3}), 5, session="s-3")


@pytest.mark.parametrize(
    "named",
    [{"tool": "use_mcp_tool", "arguments": SEARCH["arguments"]}, {"tool": "use_mcp_tool"}, {"tool": NAME}],
)
def test_a_result_without_an_id_finds_its_call_by_the_name_that_its_client_knows(api, named):
    for _ in range(2):
        event = {"session": "s-1", "type": "call", **SEARCH}
        assert api.post("/events", {"events": [event]}).status_code == 202
        result = {"session": "s-1", "type": "result", "content": "0 hits", **named}
        assert api.post("/events", {"events": [result]}).status_code == 202
    evaluate(Session.objects.get().key)
    closed = Event.objects.filter(type="result").order_by("seq").values_list("closes", flat=True)
    assert [*closed] == [1, 3]


@pytest.mark.parametrize(("preset", "ran"), [("proxy", 3), ("standard", 6)])
def test_presets_of_other_systems_count_the_tool_that_was_called(api, preset, ran):
    api.put("/overrides", {"values": {"preset": preset, "identity": "tool", "max_repeats": 4, "similar_enabled": False,
                                      "outcome_enabled": False, "stagnation_enabled": False}})  # fmt: skip
    agent = Agent(api)
    tools = ["open_a", "shut_b", "name_c", "rate_d", "move_e", "free_f"]
    taken = [agent.step(of(tool, {"id": tool}), f"done with {tool}") for tool in tools]
    assert sum(decision in ("allow", "warn") for decision in taken) == ran


def test_tools_that_only_name_another_one_are_themselves(api):
    calls: list[dict[str, Any]] = [
        {"tool": "install", "arguments": {"tool": "ripgrep"}},
        {"tool": "describe_tool", "arguments": {"tool_name": "search_docs"}},
        {"tool": "run_code", "arguments": {"code": "tools.a({}); tools.b({})"}},
        {"tool": "call_tool", "arguments": "not JSON"},
    ]
    agent = Agent(api)
    for number, call in enumerate(calls):
        agent.step(call, f"result {number}")
    assert [event.tool for event in Event.objects.filter(type="call").order_by("seq")] == [
        call["tool"] for call in calls
    ]


def test_a_cycle_of_dispatched_tools_is_named_by_them(api):
    agent = Agent(api)
    lap = [of("read_page", {"id": 1}), of("list_pages", {})]
    for _ in range(6):
        for number, call in enumerate(lap):
            agent.step(call, f"text {number}")
    assert "list_pages → read_page" in Incident.objects.filter(kind="cycle").values_list("tool", flat=True)
