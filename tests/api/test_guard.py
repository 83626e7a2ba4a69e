"""POST /api/v1/guard."""

import contextlib
import hashlib
import time
from typing import Any

import pytest

from detection.models import Event
from detection.selectors import dashboard
from detection.services.ingestion import session_queue
from detection.services.ingestion.attempts import recorder
from detection.sql.deadlines import deadline


def test_the_fourth_identical_call_is_blocked_with_its_incident_and_the_source_of_every_setting(api):
    decisions = [api.call().json()["decision"] for _ in range(3)]
    answer = api.call(backend="openai", model="gpt-5").json()
    assert decisions == ["allow", "allow", "allow"]
    assert answer["decision"] == "block"
    verdict = answer["verdicts"][0]
    assert verdict["finding"]["kind"] == "repeat"
    assert verdict["finding"]["count"] == 4
    assert verdict["policy"]["max_repeats"]["source"] == "preset:standard"
    assert verdict["policy"]["mode"] == {"value": "block_then_stop", "source": "preset:standard"}
    assert verdict["message"].startswith("The call was not run.")
    assert verdict["message"].endswith("The same call again will not be run.")
    assert answer["links"]["incident"].endswith(f"/p/support/incidents/{verdict['incident']}")
    assert answer["links"]["session"].endswith("/p/support/sessions/s-1")
    assert api.get(f"/incidents/{verdict['incident']}").json()["count"] == 4


def test_a_repeated_call_is_warned_about_blocked_four_times_and_then_stopped(api):
    """Results are sent with the next call, as agents do; every 4th to 7th call is blocked, the 8th ends the run."""
    decisions, messages = [], []
    results: list[Any] = []
    for n in range(9):
        call = {"call_id": f"c{n}", "tool": "search_web", "arguments": {"q": "reset"}}
        answer = api.post("/guard", {"session": "s-1", "results": results, "calls": [call]}).json()
        decisions.append(answer["decision"])
        messages.append(answer["verdicts"][0]["message"])
        results = [{"call_id": f"c{n}", "content": "0 hits", "is_error": False}] if n < 3 else []
    assert decisions == ["allow", "allow", "warn"] + ["block"] * 4 + ["stop"] * 2
    assert messages[6].endswith("The same call again will end the session.")
    assert messages[7].startswith("Tool call loop detected")
    assert api.get("/sessions/s-1").json()["state"] == "stopped"
    assert api.call(tool="read_file").json()["decision"] == "allow"


def test_a_different_call_is_not_blocked_and_gives_a_new_chance(api):
    assert api.loop("s-1")["decision"] == "block"
    assert api.get("/sessions/s-1").json()["state"] == "looping"
    assert api.call("s-1", tool="read_file").json()["decision"] == "allow"
    assert [api.call("s-1").json()["decision"] for _ in range(8)] == ["allow"] * 3 + ["block"] * 4 + ["stop"]


def test_verdicts_calls_and_incidents_name_the_rung_the_detection_and_the_laps_of_the_pattern(api):
    def call(number):
        tool = ("read_file", "edit_file")[number % 2]
        return {
            "session": "s-1",
            "calls": [{"call_id": f"c{number}", "tool": tool, "arguments": {"path": "a"}}],
        }

    verdicts = [api.post("/guard", call(number)).json()["verdicts"][0] for number in range(8)]
    verdict = verdicts[-1]
    pattern = {"pattern": ["read_file", "edit_file"], "laps": 4}
    assert (verdict["rung"], verdict["detection_number"]) == ("warn", 1)
    assert verdict["finding"].items() >= {**pattern, "tool": "edit_file", "period": 2}.items()
    incident = api.get(f"/incidents/{verdict['incident']}").json()
    assert incident.items() >= {**pattern, "rung": "warn", "detection_number": 1}.items()
    shown = api.get("/sessions/s-1/calls").json()["items"][-1]
    assert (shown["rung"], shown["detection_number"]) == ("warn", 1)
    assert shown["finding"] == verdict["finding"]
    assert (verdicts[0]["rung"], verdicts[0]["detection_number"]) == (None, 0)
    resent = api.post("/guard", call(7)).json()["verdicts"][0]
    assert (resent["duplicate"], resent["rung"], resent["finding"]) == (True, "warn", verdict["finding"])


def test_the_result_of_a_gemini_call_names_its_tool(api):
    call = {"tool": "t", "arguments": {}}
    answers = [
        api.post("/guard?render=gemini", {"session": "s-1", "calls": [{**call, "call_id": f"c{n}"}],
                 "results": [{"call_id": f"c{n - 1}", "content": "same"}] if n else []}).json()
        for n in range(3)
    ]  # fmt: skip
    rendered = answers[-1]["verdicts"][0]["rendered"]
    assert rendered["functionResponse"].items() >= {"id": "c2", "name": "t"}.items()


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
    assert [verdict["decision"] for verdict in answer["verdicts"]] == ["block", "allow", "allow"]
    assert answer["decision"] == "block"


@pytest.mark.promise("REL-11")
def test_a_resent_call_gets_the_verdict_that_it_got_the_first_time(api):
    body = {"session": "s-1", "calls": [{"call_id": "same", "tool": "t", "arguments": {}}]}
    answers = [api.post("/guard", body).json() for _ in range(6)]
    assert {answer["decision"] for answer in answers} == {"allow"}
    assert [answer["verdicts"][0]["duplicate"] for answer in answers] == [False] + [True] * 5
    assert Event.objects.count() == 1


@pytest.mark.parametrize("shape", ["openai", "anthropic", "gemini", "mcp", "text", "claude_code", "codex"])
def test_the_message_is_rendered_in_the_shape_that_the_client_speaks(api, shape):
    loops = [
        api.post(
            "/guard?render=" + shape,
            {"session": "s-1", "model": "gpt-5", "calls": [{"call_id": f"c{n}", "tool": "t"}]},
        ).json()
        for n in range(8)
    ]
    first, last = loops[0]["verdicts"][0], loops[7]["verdicts"][0]
    message, rendered = last["message"], last["rendered"]
    assert (first["rendered"] is None) == (shape not in ("claude_code", "codex"))
    if shape == "text":
        assert rendered == message
    elif shape == "openai":
        assert rendered["choices"][0]["message"]["content"] == message
        assert rendered["model"] == "gpt-5"
    elif shape == "anthropic":
        assert (rendered["tool_use_id"], rendered["is_error"]) == ("c7", True)
    elif shape == "gemini":
        assert rendered["candidates"][0]["content"]["parts"] == [{"text": message}]
    elif shape == "mcp":
        assert rendered["isError"] is True
    else:
        assert rendered["hookSpecificOutput"]["permissionDecisionReason"] == message
        assert rendered.get("stopReason") == (message if shape == "claude_code" else None)


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


def test_a_large_result_is_cut_instead_of_rejected_wherever_that_is_done(api):
    digest = hashlib.blake2b(("x" * 300_000).encode(), digest_size=16).hexdigest()
    whole = {"call_id": "a", "content": "x" * 300_000}
    cut = {"call_id": "b", "content": "x" * 16_384, "content_digest": digest, "content_length": 300_000}
    other = cut | {"call_id": "c", "content_digest": "another"}
    calls = [{"call_id": one, "tool": "read", "arguments": {"path": one}} for one in "abc"]
    api.post("/guard", {"session": "s-1", "calls": calls})
    assert api.post("/guard", {"session": "s-1", "results": [whole, cut, other]}).status_code == 200
    rows = {row.call_id: row for row in Event.objects.filter(type="result")}
    assert {row.content_length for row in rows.values()} == {300_000}
    assert len({row.content for row in rows.values()}) == 1
    assert rows["a"].tail_digest == rows["b"].tail_digest != rows["c"].tail_digest
    huge = {"tool": "t", "arguments": {"q": "x" * 300_000}}
    assert api.post("/guard", {"session": "s-1", "calls": [huge]}).json()["code"] == "event_too_large"


def test_altered_and_unknown_fields_are_reported(api):
    body = '{"session": "s-1", "color": {}, "calls": [{"tool": "t", "arguments": {"q": "\\u0000"}}]}'
    answer = api.raw("/guard", body).json()
    assert answer["altered"] == [
        {"path": "", "marks": ["unknown_field"], "unknown_fields": ["color"]},
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


@pytest.mark.parametrize("given", ["0", "-5", "1.5", "soon", "\u00b2", "9" * 10])
def test_a_time_to_wait_must_be_a_number_of_milliseconds(api, given):
    answer = api.post(
        "/guard",
        {"session": "s", "calls": [{"tool": "t"}]},
        headers={"LoopGuard-Timeout-Ms": given.encode("latin-1")},
    )
    assert (answer.status_code, answer.json()["path"]) == (422, "LoopGuard-Timeout-Ms")


def test_of_many_requests_for_a_session_that_is_not_unlocked_only_a_few_wait(api, project, monkeypatch):
    monkeypatch.setattr(session_queue, "STUCK_SECONDS", 0.02)
    with deadline(time.monotonic() + 60), contextlib.ExitStack() as waiting:
        for _ in range(session_queue.MAX_INSIDE):
            waiting.enter_context(session_queue.session_queue.place(project.pk, "s"))
        answer = api.call(session="s")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "Retry-After" in answer.headers
        assert api.call(session="other").status_code == 200
    assert api.call(session="s").status_code == 200
    recorder.flush()
    assert dashboard.missed_guard_requests(project.pk) == 1


def test_the_same_slow_call_gets_one_chance_and_a_different_one_another(api, settings, tmp_path):
    now = 1_800_000_000
    (tmp_path / "clock").write_text(str(now))
    settings.TEST_CLOCK = str(tmp_path / "clock")
    api.put("/overrides", {"values": {"preset": "proxy", "mode": "chance", "ttl_seconds": 120}})

    def rungs(tools, gap=40, session="s-1"):
        nonlocal now
        given = []
        for tool in tools:
            now += gap
            (tmp_path / "clock").write_text(str(now))
            given.append(api.call(session=session, tool=tool).json()["verdicts"][0]["rung"])
        return given

    assert rungs(["search"] * 8) == [None, None, None, "chance", "stop", "stop", "stop", "stop"]
    assert rungs(["read"] * 4)[-1] == "chance"
    assert rungs(["other", *["search"] * 4])[-1] == "stop"
    assert rungs(["read"] * 6, gap=20, session="s-2") == [None, None, None, "chance", "stop", "stop"]


@pytest.mark.parametrize("copies", [2, 3])
def test_copies_in_one_reply_are_all_answered_with_the_guidance_before_a_stop(copies, api):
    api.put("/overrides", {"values": {"preset": "proxy", "mode": "chance"}})
    api.loop(times=3)

    def reply(number):
        calls = [
            {"call_id": f"{number}-{copy}", "tool": "search_web", "arguments": {"q": "reset"}}
            for copy in range(copies)
        ]
        return api.post("/guard", {"session": "s-1", "calls": calls}).json()

    first, second = reply(1), reply(2)
    assert [one["rung"] for one in first["verdicts"]] == ["chance"] * copies
    assert [one["rung"] for one in second["verdicts"]] == ["stop"] * copies
