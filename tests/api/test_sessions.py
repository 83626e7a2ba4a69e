"""Everything under /api/v1/sessions."""

import pytest
from django.utils import timezone

from detection.engine.scopes import PROJECT
from detection.models import AuditEntry, Event, Session
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from detection.services.sessions.evaluation import evaluate


def names(answer):
    return [item["session"] for item in answer.json()["items"]]


def test_sessions_are_listed_newest_first_page_by_page(api):
    for number in range(5):
        api.call(f"s-{number}")
    seen, cursor = [], ""
    while cursor is not None:
        page = api.get("/sessions", limit=2, cursor=cursor).json()
        seen += [item["session"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert seen == ["s-4", "s-3", "s-2", "s-1", "s-0"]


@pytest.mark.parametrize("letter", ["x", "ö", "🐌"])
def test_pages_go_on_behind_the_longest_names(api, letter):
    wanted = [f"{number}{letter * 255}" for number in range(3)]
    for name in wanted:
        assert api.call(name).status_code == 200
    seen, cursor = [], ""
    while cursor is not None:
        answer = api.get("/sessions", sort="session", limit=1, cursor=cursor)
        assert answer.status_code == 200, answer.text
        seen += names(answer)
        cursor = answer.json()["next_cursor"]
    assert seen == wanted


def test_filters_narrow_the_list(api):
    api.call("alpha", agent="triage", backend="openai", model="gpt-5")
    api.call("beta", agent="coder", backend="local", model="qwen", tool="write_file")
    api.loop("gamma", times=3)
    api.loop("delta", times=8)
    assert names(api.get("/sessions", agent="triage")) == ["alpha"]
    assert names(api.get("/sessions", backend="local", model="qwen")) == ["beta"]
    assert names(api.get("/sessions", tool="write_file")) == ["beta"]
    assert names(api.get("/sessions", q="LPH")) == ["alpha"]
    assert names(api.get("/sessions", q="%")) == []
    assert names(api.get("/sessions", state="stopped")) == ["delta"]
    assert names(api.get("/sessions", state="running")) == ["gamma", "beta", "alpha"]
    assert names(api.get("/sessions", demo="true")) == []
    assert api.get("/sessions", state="nonsense").status_code == 422


@pytest.mark.parametrize(
    "name", ["a/b", "a b", "ü/ß", "a%2Fb", "..", "a?b#c", "a/calls", "a/stop", "s;1", "/lead", "trail/", "😀"]
)
def test_any_name_works_percent_encoded(api, name):
    from urllib.parse import quote

    api.call(name)
    path = f"/sessions/{quote(name, safe='')}" if name != ".." else "/sessions/%2e%2e"
    detail = api.get(path)
    assert detail.json().get("session") == name, detail.text
    assert api.get(f"{path}/calls").json()["items"][0]["tool"] == "search_web"
    assert api.post(f"{path}/stop").json()["state"] == "stopping"
    assert api.post(f"{path}/resume").json()["state"] == "running"


def test_the_detail_shows_each_effective_setting_with_its_source(api):
    api.loop("s-1", backend="openai", model="gpt-5")
    api.put("/overrides/openai/gpt-5", {"values": {"max_repeats": 5}})
    api.patch("/sessions/s-1/policy", {"ttl_seconds": 60})
    detail = api.get("/sessions/s-1").json()
    assert detail["policy"]["max_repeats"] == {"value": 5, "source": "model:openai/gpt-5"}
    assert detail["policy"]["ttl_seconds"] == {"value": 60, "source": "session"}
    assert detail["policy_values"] == {"ttl_seconds": 60}
    assert detail["incidents"][0]["kind"] == "repeat"
    assert detail["state"] == "looping"
    assert detail["calls"] == 4
    assert detail["meter"]["kind"] == "repeat"


def test_the_detail_lists_the_limits_that_are_nearly_used(api):
    api.put("/overrides", {"values": {"budget_max_calls": 10, "budget_max_tokens": 1000}})
    api.post("/events", {"type": "message", "session": "s-1", "content": "hello"})
    assert api.call(arguments={"n": 0}).json()["decision"] == "allow"
    assert api.get("/sessions/s-1").json()["limit_notices"] == []
    for number in range(1, 9):
        api.call(arguments={"n": number}, tool=f"tool-{number}")
    (notice,) = api.get("/sessions/s-1").json()["limit_notices"]
    assert notice.pop("at") <= timezone.now().isoformat()
    assert (notice.pop("seq"), notice.pop("call_number")) == (9, 8)
    assert notice == {"kind": "budget", "unit": "calls", "used": 8.0, "limit": 9.0, "tool": "tool-7"}
    assert api.get("/sessions/s-1").json()["incidents"] == []


def test_calls_come_with_result_and_verdict_page_by_page(api):
    for number in range(4):
        api.post(
            "/guard",
            {"session": "s-1", "calls": [{"call_id": f"c{number}", "tool": "t", "arguments": {"n": 1}}]},
        )
    api.post(
        "/events",
        {"type": "result", "session": "s-1", "call_id": "c1", "content": "0 hits", "is_error": True},
    )
    first = api.get("/sessions/s-1/calls", limit=3).json()
    second = api.get("/sessions/s-1/calls", limit=3, cursor=first["next_cursor"]).json()
    assert [call["call_id"] for call in first["items"] + second["items"]] == ["c0", "c1", "c2", "c3"]
    assert [call["number"] for call in first["items"] + second["items"]] == [1, 2, 3, 4]
    assert second["next_cursor"] is None
    assert first["items"][1]["result"]["is_error"] is True
    assert first["items"][0]["result"] is None
    assert second["items"][0]["decision"] == "block"
    assert second["items"][0]["finding"]["count"] == 4
    assert second["items"][0]["incident"].startswith("inc_")
    assert api.get("/sessions/s-1/calls", cursor="x9").json()["code"] == "invalid_cursor"


def test_settings_of_a_session_are_set_unset_and_checked(api):
    api.call()
    assert (
        api.patch("/sessions/s-1/policy", {"max_repeats": 9}).json()["policy"]["max_repeats"]["source"]
        == "session"
    )
    assert api.patch("/sessions/s-1/policy", {"values": {"ttl_seconds": 5}}).json()["policy_values"] == {
        "max_repeats": 9,
        "ttl_seconds": 5,
    }
    assert api.patch("/sessions/s-1/policy", {"max_repeats": None}).json()["policy_values"] == {
        "ttl_seconds": 5
    }
    wrong = api.patch("/sessions/s-1/policy", {"max_repeats": 1})
    assert (wrong.status_code, wrong.json()["path"]) == (422, "max_repeats")
    assert api.patch("/sessions/s-1/policy", {"project_id": 7}).json()["code"] == "invalid_setting"


def test_commands_change_the_next_verdict(api):
    for _ in range(3):
        api.call()
    answer = api.post("/sessions/s-1/commands", {"text": "please !/set(tool-loop-max-repeats=6) now"}).json()
    assert answer["changed"] is True
    assert len(answer["lines"]) == 1
    assert answer["policy_values"] == {"max_repeats": 6}
    assert api.call().json()["decision"] == "allow"
    assert api.post("/sessions/s-1/commands", {"text": "hello"}).json()["code"] == "no_command"


def test_stop_and_resume_are_repeatable_and_audited_with_the_key(api, key):
    api.call()
    for _ in range(2):
        stopped = api.post("/sessions/s-1/stop", {"reason": "too dear"}).json()
    assert stopped["stopped"]["reason"] == "too dear"
    assert stopped["stopped"]["by"] == f"key:{key[3:13]}"
    assert api.post("/sessions/s-1/resume").json()["stopped"] is None
    entry = AuditEntry.objects.get(action="session.stop")
    assert entry.actor == f"key:{key[3:13]}"
    assert entry.address == "192.0.2.7"
    assert entry.request_id.startswith("req_")
    assert api.post("/sessions/s-1/stop", {"reason": "x", "is_staff": True}).json()["code"] == "unknown_field"
    assert api.post("/sessions/s-1/stop", {"reason": "x" * 301}).status_code == 422


def state_of(api, session="s-1"):
    return api.get(f"/sessions/{session}").json()


def observe(api, calls, session="s-1"):
    """Report calls that have run already, and evaluate them."""
    events = [
        {"type": "call", "session": session, "call_id": f"seen-{number}", "tool": tool, "arguments": {"q": q}}
        for number, (tool, q) in enumerate(calls)
    ]
    assert api.post("/events", {"events": events}).status_code == 202
    evaluate(Session.objects.get(external_id=session).key)


def test_a_session_told_to_stop_is_stopped_by_detection_until_a_later_call_is_allowed(api):
    assert api.loop("s-1", times=8)["decision"] == "stop"
    stopped = state_of(api)
    assert (stopped["state"], stopped["stopped"]["kind"], stopped["stopped"]["by"]) == (
        "stopped",
        "detection",
        "repeat",
    )
    assert "search_web" in stopped["stopped"]["reason"]
    assert names(api.get("/sessions", state="stopped")) == ["s-1"]
    assert names(api.get("/sessions", state="looping")) == []

    api.call("s-1", tool="read_file")
    going_on = state_of(api)
    assert (going_on["state"], going_on["stopped"]) == ("looping", None)


def test_a_person_s_stop_outlasts_detection_s_and_resume_ends_both(api):
    api.loop("s-1", times=8)
    assert api.post("/sessions/s-1/stop", {"reason": "enough"}).json()["stopped"]["kind"] == "person"
    api.call("s-1", tool="read_file")
    assert state_of(api)["stopped"]["reason"] == "enough"
    assert api.post("/sessions/s-1/resume").json()["stopped"] is None

    assert api.loop("s-2", times=8)["decision"] == "stop"
    assert api.post("/sessions/s-2/resume").json()["stopped"] is None
    assert api.call("s-2").json()["decision"] == "allow"


def test_an_observed_session_that_would_have_been_stopped_keeps_running_and_says_so(api):
    observe(api, [("search_web", "a"), *[("read_file", "b")] * 9])
    observed = state_of(api)
    assert (observed["state"], observed["stopped"]) == ("looping", None)
    assert observed["would_have_stopped_at_call"] == 9


def test_an_ended_session_is_ended_whatever_stopped_it(api):
    api.loop("s-1")
    api.post("/sessions/s-1/stop")
    api.post("/events", {"type": "end", "session": "s-1", "outcome": "failed"})
    evaluate(Session.objects.get().key)
    assert state_of(api)["state"] == "ended"
    assert state_of(api)["stopped"]["kind"] == "person"


def test_replies_to_commands_in_messages_come_with_the_calls_around_them(api):
    def say(text):
        api.post("/events", {"type": "message", "session": "s-1", "content": text})
        evaluate(Session.objects.get().key)

    api.call()
    say("please !/set(tool-loop-max-repeats=6) and !/set(tool-loop-colour=red)")
    api.call()
    say("!/unset(tool-loop-max-repeats)")
    first = api.get("/sessions/s-1/calls", limit=1).json()
    second = api.get("/sessions/s-1/calls", limit=1, cursor=first["next_cursor"]).json()
    assert first["command_replies"] == []
    assert [(reply["seq"], len(reply["lines"])) for reply in second["command_replies"]] == [(2, 2), (4, 1)]
    assert second["command_replies"][0]["lines"][0] == "tool-loop-max-repeats is now 6."


def test_the_answer_to_a_preset_names_what_it_does_not_replace(api, project):
    overrides.save_override(project.pk, PROJECT, {"max_repeats": 9}, SYSTEM)
    api.call()
    changed = api.patch("/sessions/s-1/policy", {"preset": "proxy"}).json()
    assert changed["kept_over_preset"] == [{"setting": "max_repeats", "value": 9, "source": "project"}]
    assert changed["policy"]["max_repeats"] == {"value": 9, "source": "project"}
    changed = api.patch("/sessions/s-1/policy", {"max_repeats": 4}).json()
    assert changed["kept_over_preset"] == []
    told = api.post(
        "/sessions/s-1/commands", {"text": "!/unset(tool-loop-max-repeats) !/set(tool-loop-preset=proxy)"}
    )
    assert told.json()["lines"][1] == (
        "tool-loop-preset is now proxy; tool-loop-max-repeats stays 9 (from project)."
    )


def test_an_exemption_is_listed_and_can_be_revoked(api, project):
    overrides.save_override(project.pk, PROJECT, {"mode": "ask", "attended": True}, SYSTEM)
    for _ in range(4):
        verdict = api.call().json()["verdicts"][0]
    api.post(f"/approvals/{verdict['approval']['id']}/decision", {"choice": "exempt"})
    assert api.get("/sessions/s-1").json()["exempt_tools"] == ["search_web"]
    revoked = api.post("/sessions/s-1/revoke-exemption", {"tool": "search_web"})
    assert revoked.json()["exempt_tools"] == []
    assert AuditEntry.objects.filter(action="session.exemption.revoke").count() == 1
    again = api.post("/sessions/s-1/revoke-exemption", {"tool": "search_web"})
    assert (again.status_code, again.json()["code"]) == (409, "not_exempt")


def commanded(api, text, door):
    """Send commands as a message of the user or through the API of commands; the replies."""
    if door == "api":
        return api.post("/sessions/s-1/commands", {"text": text}).json()["lines"]
    api.post("/events", {"session": "s-1", "type": "message", "role": "user", "content": text})
    evaluate(Session.objects.get(external_id="s-1").key)
    return Event.objects.filter(type="message").latest("seq").reply.split("\n")


@pytest.mark.parametrize("door", ["chat", "api"])
def test_tools_are_spared_by_a_command_until_it_is_undone(api, door):
    api.call()
    assert commanded(api, "!/set(tool-loop-exempt=search_web, gdb_step)", door) == [
        "tool-loop-exempt is now search_web, gdb_step."
    ]
    assert [api.call().json()["verdicts"][0]["decision"] for _ in range(6)] == ["allow"] * 6
    assert commanded(api, "!/unset(tool-loop-exempt=search_web)", door) == [
        "tool-loop-exempt is now gdb_step."
    ]
    assert api.loop(times=5)["verdicts"][0]["decision"] == "block"
    assert commanded(api, "!/unset(tool-loop-exempt)", door) == ["tool-loop-exempt is now no tool."]
    assert api.loop(times=5, tool="gdb_step")["verdicts"][0]["decision"] == "block"
    assert Session.objects.get(external_id="s-1").exempt_tools == []


@pytest.mark.parametrize("door", ["chat", "api"])
def test_only_the_named_tool_is_spared_and_a_mistake_spares_none(api, door):
    api.call()
    for text, said in {
        "!/set(tool-loop-exempt=)": "tool-loop-exempt needs a value",
        "!/set(tool-loop-exempt=gdb_*)": "tool-loop-exempt takes the whole names of tools",
        "!/set(tool-loop-exemt=search_web)": "Unknown setting 'tool-loop-exemt'. Known: ",
        "!/set(tool-loop-exempt=search_web, tool-loop-mode=maybe)": "tool-loop-mode must be one of",
        "!/unset(tool-loop-exempt=search_web)": "search_web is not exempt in this session.",
    }.items():
        (line,) = commanded(api, text, door)
        assert line.startswith(said)
    assert Session.objects.get(external_id="s-1").exempt_tools == []
    (line,) = commanded(api, "!/set(tool-loop-max-repeats=5, tool-loop-exempt=other)", door)
    assert line == "tool-loop-exempt is now other; tool-loop-max-repeats is now 5."
    assert api.loop(times=6)["verdicts"][0]["decision"] == "block"
