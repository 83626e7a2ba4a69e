"""POST /api/v1/guard."""

import pytest

from detection.models import Event


def test_the_fourth_identical_call_is_stopped_with_its_incident_and_the_source_of_every_setting(api):
    decisions = [api.call().json()["decision"] for _ in range(3)]
    answer = api.call(backend="openai", model="gpt-5").json()
    assert decisions == ["allow", "allow", "allow"]
    assert answer["decision"] == "stop"
    verdict = answer["verdicts"][0]
    assert verdict["finding"]["kind"] == "repeat"
    assert verdict["finding"]["count"] == 4
    assert verdict["policy"]["max_repeats"]["source"] == "preset:standard"
    assert verdict["message"].startswith("Tool call loop detected")
    assert answer["links"]["incident"].endswith(f"/p/support/incidents/{verdict['incident']}")
    assert answer["links"]["session"].endswith("/p/support/sessions/s-1")
    assert api.get(f"/incidents/{verdict['incident']}").json()["count"] == 4


def test_verdicts_come_in_the_order_of_the_calls_and_the_strictest_decides(api):
    for _ in range(3):
        api.call()
    calls = [
        {"call_id": "b", "tool": "search_web", "arguments": {"q": "reset"}},
        {"call_id": "a", "tool": "read_file", "arguments": '{"path": "x"}'},
        {"call_id": "c", "tool": "write_file"},
    ]
    answer = api.post("/guard", {"session": "s-1", "calls": calls}).json()
    assert [verdict["call_id"] for verdict in answer["verdicts"]] == ["b", "a", "c"]
    assert [verdict["decision"] for verdict in answer["verdicts"]] == ["stop", "allow", "allow"]
    assert answer["decision"] == "stop"


def test_a_resent_call_gets_the_verdict_that_it_got_the_first_time(api):
    body = {"session": "s-1", "calls": [{"call_id": "same", "tool": "t", "arguments": {}}]}
    answers = [api.post("/guard", body).json() for _ in range(6)]
    assert {answer["decision"] for answer in answers} == {"allow"}
    assert [answer["verdicts"][0]["duplicate"] for answer in answers] == [False] + [True] * 5
    assert Event.objects.count() == 1


@pytest.mark.parametrize("shape", ["openai", "anthropic", "mcp", "text", "claude_code"])
def test_the_message_is_rendered_in_the_shape_that_the_client_speaks(api, shape):
    loops = [
        api.post(
            "/guard?render=" + shape,
            {"session": "s-1", "model": "gpt-5", "calls": [{"call_id": f"c{n}", "tool": "t"}]},
        ).json()
        for n in range(4)
    ]
    first, last = loops[0]["verdicts"][0], loops[3]["verdicts"][0]
    message, rendered = last["message"], last["rendered"]
    assert (first["rendered"] is None) == (shape != "claude_code")
    if shape == "text":
        assert rendered == message
    elif shape == "openai":
        assert rendered["choices"][0]["message"]["content"] == message
        assert rendered["model"] == "gpt-5"
    elif shape == "anthropic":
        assert (rendered["tool_use_id"], rendered["is_error"]) == ("c3", True)
    elif shape == "mcp":
        assert rendered["isError"] is True
    else:
        assert rendered == {"continue": False, "stopReason": message}


def test_an_unknown_shape_is_rejected(api):
    answer = api.post("/guard?render=xml", {"session": "s-1", "calls": [{"tool": "t"}]})
    assert (answer.status_code, answer.json()["path"]) == (422, "render")


def test_what_a_result_brings_to_light_comes_as_a_notice(api):
    policy = {"outcome_max_errors": 3, "mode": "warn"}
    api.patch("/sessions/none/policy", policy)
    answer = api.post(
        "/guard", {"session": "s-1", "results": [{"call_id": "unknown", "content": "x"}]}
    ).json()
    assert answer["decision"] == "allow"
    assert answer["verdicts"] == []
    assert answer["notices"] == []


def test_one_invalid_call_rejects_the_request_and_stores_nothing(api):
    answer = api.post("/guard", {"session": "s-1", "calls": [{"tool": "t"}, {"tool": ""}]})
    assert (answer.status_code, answer.json()["path"]) == (422, "calls[1].tool")
    assert Event.objects.count() == 0
    assert api.post("/guard", {"session": "s-1"}).json()["path"] == "calls"
    assert api.post("/guard", {"calls": [{"tool": "t"}]}).json()["path"] == "session"
    assert api.post("/guard", {"session": "s-1", "calls": {}}).json()["code"] == "invalid_type"


def test_altered_and_unknown_fields_are_reported(api):
    body = '{"session": "s-1", "metadata": {}, "calls": [{"tool": "t", "arguments": {"q": "\\u0000"}}]}'
    answer = api.raw("/guard", body).json()
    assert answer["altered"] == [
        {"path": "", "marks": ["unknown_field"]},
        {"path": "calls[0]", "marks": ["nul"]},
    ]


def test_a_stop_by_an_operator_holds_for_the_next_call(api):
    api.call()
    api.post("/sessions/s-1/stop", {"reason": "budget"})
    answer = api.call(tool="something_else").json()
    assert answer["decision"] == "stop"
    assert "budget" in answer["verdicts"][0]["message"]
    api.post("/sessions/s-1/resume")
    assert api.call().json()["decision"] == "allow"


def test_a_call_costs_few_queries(api, django_assert_max_num_queries):
    api.call()
    with django_assert_max_num_queries(12):
        api.call(tool="read_file")
