"""POST /api/v1/hooks/{host}: the bodies are those that the programs send."""

import itertools
from typing import Any

import orjson
import pytest
from django.conf import settings
from django.test import Client

from detection.console import permalinks
from detection.integrations.hosts import HOSTS
from detection.models import Event, Incident, Role, Session
from detection.services.ingestion.attempts import recorder
from detection.services.sessions.evaluation import evaluate
from tests.support.projects import make_member

BEFORE: dict[str, dict[str, Any]] = {
    "claude-code": {
        "session_id": "5d1c", "transcript_path": "/home/u/5d1c.jsonl", "cwd": "/src", "permission_mode": "default",
        "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "make test", "description": "Run"},
    },
    "codex": {
        "session_id": "019a", "turn_id": "t1", "transcript_path": None, "cwd": "/src", "hook_event_name": "PreToolUse",
        "model": "gpt-5", "permission_mode": "default", "tool_name": "Bash", "tool_input": {"command": "make test"},
    },
    "gemini-cli": {
        "session_id": "g1", "transcript_path": "", "cwd": "/src", "hook_event_name": "BeforeTool",
        "timestamp": "2026-11-22T12:00:00.000Z", "tool_name": "run_shell_command", "tool_input": {"command": "make test"},
    },
    "copilot": {
        "session_id": "c1", "timestamp": "2026-11-22T12:00:00.000Z", "cwd": "/src", "hook_event_name": "PreToolUse",
        "tool_name": "bash", "tool_input": {"command": "make test"},
    },
    "opencode": {
        "session_id": "ses_1", "hook_event_name": "tool.execute.before", "tool_name": "bash",
        "tool_input": {"command": "make test"},
    },
}  # fmt: skip
PLUGINS = ("opencode", "kilo", "cline", "pi")
BEFORE |= dict.fromkeys(PLUGINS, BEFORE["opencode"])
BEFORE["droid"] = BEFORE["claude-code"] | {"tool_name": "Execute"}  # without ids of calls
BEFORE["cursor"] = {
    "conversation_id": "cu1", "generation_id": "g1", "model": "gpt-5", "cursor_version": "2.0.77",
    "workspace_roots": ["/src"], "user_email": None, "transcript_path": None, "cwd": "/src",
    "hook_event_name": "preToolUse", "tool_name": "Shell", "tool_input": {"command": "make test"},
}  # fmt: skip
BEFORE["goose"] = {
    "event": "PreToolUse", "session_id": "20261128_1", "matcher_context": "developer__shell",
    "tool_name": "developer__shell", "tool_input": {"command": "make test"}, "working_dir": "/src",
}  # fmt: skip
BEFORE["openhands"] = {
    "event_type": "PreToolUse", "session_id": "oh1", "tool_name": "terminal", "tool_input": {"command": "make test"},
    "tool_output": None, "message": None, "working_dir": "/src", "metadata": {},
}  # fmt: skip
WINDSURF = {
    "trajectory_id": "ws1", "execution_id": "e1", "timestamp": "2026-11-22T12:00:00Z", "model_name": "SWE-1.5",
}  # fmt: skip
BEFORE["windsurf"] = WINDSURF | {
    "agent_action_name": "pre_run_command", "tool_info": {"command_line": "make test", "cwd": "/src"},
}  # fmt: skip
BEFORE["kiro"] = {
    "hook_event_name": "PreToolUse", "session_id": "ki1", "cwd": "/src",
    "tool_name": "execute_bash", "tool_input": {"command": "make test"},
}  # fmt: skip
BEFORE["openclaw"] = {
    "hook_event_name": "before_tool_call", "sessionID": "8b31", "toolName": "exec", "params": {"command": "make test"},
}  # fmt: skip
BEFORE["qwen-code"] = BEFORE["claude-code"] | {"tool_name": "run_shell_command"}
AFTER_NAMES = {
    "gemini-cli": "AfterTool", "windsurf": "post_run_command", "openclaw": "after_tool_call",
} | dict.fromkeys(PLUGINS, "tool.execute.after")  # fmt: skip
WITH_IDS = ("claude-code", "codex", "qwen-code", "cursor", "openclaw", *PLUGINS)
ASKING = ("claude-code", "copilot", "qwen-code", "droid", "openclaw")
SILENT = ("goose", "openhands", "windsurf", "kiro")
"""Their models read nothing of a hook whose call runs."""


def session_of(host):
    return next(
        BEFORE[host][name]
        for name in ("session_id", "sessionID", "conversation_id", "trajectory_id")
        if name in BEFORE[host]
    )


def tool_of(host):
    return BEFORE[host].get("tool_name") or BEFORE[host].get("toolName", "run_command")


class HookedAgent:
    """A coding agent that repeats one call, and asks its hook before and after."""

    def __init__(self, api, host):
        self.api, self.host, self.calls = api, host, 0

    def send(self, body):
        if self.host == "windsurf" and "cwd" in body:
            body["tool_info"] = body["tool_info"] | {"cwd": body.pop("cwd")}
        answer = self.api.post(f"/hooks/{self.host}", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def before(self, **more):
        self.calls += 1
        ids = {"tool_use_id": f"toolu_{self.calls}"} if self.host in WITH_IDS else {}
        return self.send(BEFORE[self.host] | ids | more)

    def after(self, response="2 failed", **more):
        ids = {"tool_use_id": f"toolu_{self.calls}"} if self.host in WITH_IDS else {}
        name = {"hook_event_name": AFTER_NAMES.get(self.host, "PostToolUse"), "tool_response": response}
        return self.send(BEFORE[self.host] | ids | name | more)


def is_denied(host, answer):
    if host in (*PLUGINS, "openclaw"):
        return not answer["run"] and not answer.get("ask")
    if host == "cursor":
        return answer.get("permission") == "deny"
    if host in ("windsurf", "kiro"):
        return "deny" in answer
    if host in ("gemini-cli", "openhands", "goose"):
        return answer.get("decision") == ("block" if host == "goose" else "deny")
    return (answer.get("hookSpecificOutput") or answer).get("permissionDecision") == "deny"


@pytest.mark.parametrize("host", BEFORE)
def test_three_of_ten_identical_calls_run_and_the_incident_names_the_agent(host, api):
    agent = HookedAgent(api, host)
    runs = 0
    for _ in range(10):
        if not is_denied(host, agent.before()):
            runs += 1
            agent.after()
    assert runs == 3
    session, incident = Session.objects.get(), Incident.objects.get()
    assert session.external_id == session_of(host)
    assert (session.agent, incident.tool) == (host, tool_of(host))
    assert Event.objects.filter(type="call").count() == 10
    assert Event.objects.filter(type="result").count() == 3


@pytest.mark.parametrize("host", BEFORE)
def test_the_incident_on_the_screen_names_agent_tool_and_integration(host, api, project):
    agent = HookedAgent(api, host)
    for _ in range(4):
        agent.before()
        agent.after()
    browser = Client()
    browser.force_login(make_member(project, Role.VIEWER))
    incident = Incident.objects.get()
    page = browser.get(f"/p/{project.slug}/incidents/{incident.public_id}", follow=True).content.decode()
    assert host in page
    assert tool_of(host) in page
    session = browser.get(permalinks.session_url(project.slug, incident.session.external_id)).content.decode()
    assert f"hook of {HOSTS[host].title}" in session


@pytest.mark.parametrize("host", BEFORE)
def test_different_calls_are_left_alone(host, api):
    agent = HookedAgent(api, host)
    for number in range(20):
        assert not is_denied(host, agent.before(tool_input={"command": f"cat part-{number}.txt"}))
        agent.after(response=f"text {number}")
    assert not Incident.objects.exists()


@pytest.mark.parametrize("host", [host for host in BEFORE if host not in SILENT])
def test_the_model_reads_a_warning_before_or_with_the_result(host, api):
    api.put("/overrides", {"values": {"mode": "warn"}})
    agent = HookedAgent(api, host)
    answers = [(agent.before(), agent.after()) for _ in range(6)]
    assert not any(is_denied(host, before) for before, _ in answers)
    said = ["WARNING" in str(before) + str(after) for before, after in answers]
    assert 2 <= said.index(True) <= 3
    assert said.count(True) < 4


def test_a_sub_agent_has_a_session_of_its_own(api):
    agent = HookedAgent(api, "claude-code")
    agent.before()
    agent.before(agent_id="a7f", agent_type="Explore")
    child = Session.objects.get(external_id="5d1c/a7f")
    assert (child.parent_external_id, child.agent) == ("5d1c", "Explore")
    agent.send(
        {
            "session_id": "5d1c",
            "hook_event_name": "SubagentStop",
            "agent_id": "a7f",
            "stop_hook_active": False,
        }
    )
    assert Event.objects.get(type="end").session_id == child.pk


@pytest.mark.parametrize(
    ("more", "is_stored"),
    [
        ({}, True),
        ({"source": "user"}, True),
        ({"source": "sdk"}, True),
        ({"source": "loop_wakeup"}, False),
        ({"source": "schedule_wakeup"}, False),
        ({"agent_id": "a7f"}, False),
    ],
)
def test_only_the_prompt_of_a_user_is_one(api, more, is_stored):
    HookedAgent(api, "claude-code").send(
        {"session_id": "5d1c", "hook_event_name": "UserPromptSubmit", "prompt": "Fix the tests", **more}
    )
    assert Event.objects.filter(type="message", content="Fix the tests").exists() == is_stored
    assert Session.objects.filter(integration="hooks/claude-code").exists() == is_stored


ANSWERS = (
    ("claude-code", {"hook_event_name": "Stop", "stop_hook_active": False}, "last_assistant_message"),
    ("codex", {"hook_event_name": "Stop", "stop_hook_active": False}, "last_assistant_message"),
    ("gemini-cli", {"hook_event_name": "AfterAgent", "prompt": "continue"}, "prompt_response"),
)


def evaluate_all():
    for session in Session.objects.all():
        evaluate(session.key)


@pytest.mark.parametrize(("host", "body", "field"), ANSWERS)
@pytest.mark.parametrize("text", ["Waiting for the agents to complete.", ""])
def test_the_third_equal_answer_without_a_call_is_an_incident(api, host, body, field, text):
    agent = HookedAgent(api, host)
    for number in range(3):
        assert not Incident.objects.exists(), number
        assert agent.send({"session_id": "5d1c", **body, field: text}) == {}
        evaluate_all()
    assert Incident.objects.get().kind == "talk"


@pytest.mark.parametrize(("host", "body", "field"), ANSWERS)
def test_answers_with_work_in_between_are_no_incident(api, host, body, field):
    agent = HookedAgent(api, host)
    for number in range(6):
        agent.before(tool_input={"command": f"cat part-{number}.txt"})
        agent.after(response=f"text {number}")
        session = {"session_id": session_of(host)}
        agent.send({**session, **body, field: "The next part is done."})
        evaluate_all()
    assert Event.objects.filter(type="message", role="assistant").count() == 6
    assert not Incident.objects.exists()


@pytest.mark.parametrize("name", ["Stop", "Notification", "PostToolBatch", "SomethingNew"])
def test_other_moments_are_answered_and_change_nothing(api, name):
    assert HookedAgent(api, "claude-code").send({"session_id": "5d1c", "hook_event_name": name}) == {}
    assert not Session.objects.exists()


def test_a_program_without_an_id_has_a_session_for_its_folder(api):
    agent = HookedAgent(api, "copilot")
    for place in ("/src", "/src", "/other"):
        agent.before(session_id="", cwd=place)
    names = sorted(Session.objects.values_list("external_id", flat=True))
    assert len(names) == 2
    assert all(name.startswith("copilot-") for name in names)


@pytest.mark.parametrize(
    ("response", "content", "is_error"),
    [
        ("plain", "plain", None),
        ("no\n<shellId: 7 completed with exit code 1>", "no\n<completed with exit code 1>", None),
        ({"stdout": "out", "stderr": "err", "interrupted": False}, "out\nerr", None),
        ({"llmContent": "text", "returnDisplay": "t", "error": {"message": "no"}}, "text", True),
        ({"resultType": "failure", "textResultForLlm": "no such file"}, "no such file", True),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "isError": True}, "a\nb", True),
        ([{"type": "text", "text": "a"}], "a", None),
        ({"filePath": "x", "lines": 3}, '{"filePath":"x","lines":3}', None),
        ([{"type": "image"}], '[{"type":"image"}]', None),
        (None, None, None),
    ],
)  # fmt: skip
def test_the_text_of_a_result_is_found_in_every_form(api, response, content, is_error):
    agent = HookedAgent(api, "claude-code")
    agent.before()
    agent.after(response=response)
    result = Event.objects.get(type="result")
    assert (result.content, result.is_error) == (content, is_error)


def test_large_contents_and_arguments_are_cut_and_stay_different(api):
    agent = HookedAgent(api, "claude-code")
    for end in ("1", "1", "2"):
        agent.before(tool_name="Write", tool_input={"file_path": "a", "content": "x" * 400_000 + end})
        agent.after(response={"stdout": "y" * 400_000 + end})
    calls, results = (Event.objects.filter(type=kind).order_by("seq") for kind in ("call", "result"))
    assert [row.call_key == calls[0].call_key for row in calls] == [True, True, False]
    assert [row.tail_digest == results[0].tail_digest for row in results] == [True, True, False]
    assert {row.content_length for row in results} == {400_001}
    assert max(len(row.arguments) for row in calls) < 20_000


@pytest.mark.parametrize("host", BEFORE)
def test_binary_and_empty_contents_are_results(host, api):
    agent = HookedAgent(api, host)
    for number, content in enumerate(("\x00\x01\ufffd" * 1_000, "", "\x1b[31m\u202e")):
        assert not is_denied(host, agent.before(tool_input={"command": f"cat {number}"}))
        agent.after(response=content)
    assert Event.objects.filter(type="result", closes__isnull=False).count() == 3


@pytest.mark.parametrize("host", BEFORE)
def test_an_id_that_is_used_again_hides_no_loop(host, api):
    agent = HookedAgent(api, host)
    runs = 0
    for _ in range(10):
        if not is_denied(host, agent.before(tool_use_id="call_0")):
            runs += 1
            agent.after(tool_use_id="call_0")
    assert runs == 3


@pytest.mark.parametrize("host", BEFORE)
def test_two_hosts_on_one_session_count_together(host, api):
    agents = [HookedAgent(api, host), HookedAgent(api, host)]
    agents[1].calls = 100  # its ids are its own
    runs = 0
    for number in range(10):
        agent = agents[number % 2]
        if not is_denied(host, agent.before(session_id="shared")):
            runs += 1
            agent.after(session_id="shared")
    assert runs == 3
    assert Session.objects.count() == 1


@pytest.mark.parametrize("host", BEFORE)
def test_a_host_that_was_killed_in_a_call_is_guarded_when_it_continues(host, api):
    agent = HookedAgent(api, host)
    agent.before()
    agent.after()
    agent.before()  # killed: its result never comes
    runs = 0
    for _ in range(10):
        if not is_denied(host, agent.before()):
            runs += 1
            agent.after()
    assert runs == 2


CURSOR = {name: value for name, value in BEFORE["cursor"].items() if not name.startswith(("hook", "tool"))}
OF_CALL: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "droid": (
        BEFORE["droid"] | {"hook_event_name": "UserPromptSubmit", "prompt": "Fix the tests."},
        BEFORE["droid"],
        BEFORE["droid"] | {"hook_event_name": "PostToolUse", "tool_response": "2 failed"},
        {"session_id": "5d1c", "hook_event_name": "SessionEnd", "reason": "other", "message_count": 22},
    ),
    "cursor": (
        CURSOR | {"hook_event_name": "beforeSubmitPrompt", "prompt": "Fix the tests.", "attachments": []},
        BEFORE["cursor"] | {"tool_use_id": "#", "agent_message": "Running the tests"},
        BEFORE["cursor"] | {
            "hook_event_name": "postToolUse", "tool_use_id": "#", "tool_output": "2 failed", "duration": 31,
        },
        CURSOR | {"hook_event_name": "sessionEnd", "session_id": "cu1", "reason": "completed"},
    ),
    "goose": (
        {"event": "UserPromptSubmit", "session_id": "20261128_1", "message": "Fix the tests."},
        BEFORE["goose"] | {"tool_call_id": "#"},
        BEFORE["goose"] | {"event": "PostToolUse", "tool_call_id": "#"},
        {"event": "SessionEnd", "session_id": "20261128_1"},
    ),
    "openclaw": (
        {"hook_event_name": "before_agent_reply", "sessionID": "8b31", "prompt": "Fix the tests.", "prompt_id": "af82"},
        BEFORE["openclaw"] | {"toolCallId": "#"},
        BEFORE["openclaw"] | {
            "hook_event_name": "after_tool_call", "toolCallId": "#", "output": {"content": "2 failed", "is_error": True},
        },
        {"hook_event_name": "SessionEnd", "sessionID": "8b31"},
    ),
    "openhands": (
        BEFORE["openhands"] | {"event_type": "UserPromptSubmit", "tool_name": None, "message": "Fix the tests."},
        BEFORE["openhands"],
        BEFORE["openhands"] | {"event_type": "PostToolUse", "tool_output": "2 failed"},
        {"event_type": "SessionEnd", "session_id": "oh1", "working_dir": "/src", "metadata": {}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("host", OF_CALL)
def test_a_run_in_the_bodies_of_a_host_is_stopped_and_complete(host, api):
    prompt, before, after, end = OF_CALL[host]
    agent = HookedAgent(api, host)
    agent.send(prompt)
    runs = 0
    for number in range(10):
        ids = {name: f"call_{number}" for name, value in before.items() if value == "#"}
        if not is_denied(host, agent.send(before | ids)):
            runs += 1
            agent.send(after | ids)
    agent.send(end)
    assert runs == 3
    session = Session.objects.get()
    assert session.external_id == session_of(host)
    events = Event.objects.order_by("seq")
    kinds = [*events.values_list("type", flat=True)]
    assert (kinds[0], kinds.count("call"), kinds.count("result"), kinds[-1]) == ("message", 10, 3, "end")
    assert events[0].content == "Fix the tests."
    told = {*events.filter(type="result").values_list("content", flat=True)}
    assert told == ({None} if host == "goose" else {"2 failed"}), "Goose sends no results"


EDIT = {"file_path": "/src/app.py", "edits": [{"old_string": "a = 1", "new_string": "a = 2"}]}
ISSUE = {"owner": "code-owner", "repo": "my-cool-repo", "title": "Bug report"}
OF_MCP = {"mcp_server_name": "github", "mcp_tool_arguments": ISSUE, "mcp_tool_name": "create_issue"}
COMMAND = {"command_line": "make test", "cwd": "/src"}
OF_WINDSURF: dict[str, tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]] = {
    "run_command": (COMMAND, {}, "run_command", COMMAND),
    "write_code": (EDIT, {}, "write_code", EDIT),
    "read_code": ({"file_path": "/src/app.py"}, {}, "read_code", {"file_path": "/src/app.py"}),
    "mcp_tool_use": (OF_MCP, {"mcp_result": "2 failed"}, "create_issue", ISSUE),
}


@pytest.mark.parametrize("kind", OF_WINDSURF)
def test_each_kind_of_tool_of_windsurf_is_guarded_by_its_own_hooks(kind, api):
    told, more, tool, arguments = OF_WINDSURF[kind]
    agent = HookedAgent(api, "windsurf")
    prompt = {"agent_action_name": "pre_user_prompt", "tool_info": {"user_prompt": "Fix the tests."}}
    assert agent.send(WINDSURF | prompt) == {}
    runs, last = 0, {}
    for _ in range(10):
        last = agent.send(WINDSURF | {"agent_action_name": f"pre_{kind}", "tool_info": told})
        if last == {}:
            runs += 1
            agent.send(WINDSURF | {"agent_action_name": f"post_{kind}", "tool_info": told | more})
    answer = {"agent_action_name": "post_cascade_response", "tool_info": {"response": "I give up."}}
    assert agent.send(WINDSURF | answer) == {}
    assert (runs, [*last]) == (3, ["deny"])
    assert Session.objects.get().external_id == "ws1"
    events = [*Event.objects.order_by("seq")]
    assert [(one.type, one.content) for one in (events[0], events[-1])] == [
        ("message", "Fix the tests."), ("message", "I give up."),
    ]  # fmt: skip
    assert {one.tool for one in events if one.type == "call"} == {tool}
    assert [orjson.loads(one.arguments) for one in events if one.type == "call"] == [arguments] * 10
    assert {one.content for one in events if one.type == "result"} == {more.get("mcp_result")}


def test_a_run_in_the_bodies_of_kiro_is_stopped_and_its_session_is_that_of_the_folder(api):
    agent = HookedAgent(api, "kiro")
    about = {"cwd": "/src"}
    agent.send(about | {"hook_event_name": "userPromptSubmit", "prompt": "Fix the tests."})
    call = {"tool_name": "fs_read", "tool_input": {"operations": [{"mode": "Line", "path": "/src/app.py"}]}}
    result = {"tool_response": {"success": False, "result": ["2 failed"]}}
    runs = 0
    for _ in range(10):
        if not is_denied("kiro", agent.send(about | call | {"hook_event_name": "preToolUse"})):
            runs += 1
            agent.send(about | call | result | {"hook_event_name": "postToolUse"})
    assert runs == 3
    agent.send(about | call | {"hook_event_name": "preToolUse", "cwd": "/elsewhere"})
    assert Session.objects.count() == 2
    results = Event.objects.filter(type="result").values_list("content", "is_error")
    assert {*results} == {("2 failed", True)}


def test_a_denial_by_exit_code_is_one_line_without_what_json_escapes(api):
    agent = HookedAgent(api, "windsurf")
    for _ in range(4):
        answer = agent.before(tool_info={"command_line": 'echo "a\\b"\n', "cwd": "/src"})
    assert answer["deny"]
    assert not {'"', "\\", "\n"} & {*answer["deny"]}


def test_bodies_of_copilot_in_camel_case_are_read_although_they_name_no_event(api):
    about = {"sessionId": "fee7", "timestamp": 1795877633362, "cwd": "/src"}
    call = {"toolName": "bash", "toolArgs": {"command": "make test"}}
    result = {"toolResult": {"resultType": "success", "textResultForLlm": "2 failed"}}
    agent = HookedAgent(api, "copilot")
    assert agent.send(about | {"source": "new", "initialPrompt": "go"}) == {}
    agent.send(about | {"prompt": "Fix the tests."})
    runs = 0
    for _ in range(10):
        if not is_denied("copilot", agent.send(about | call)):
            runs += 1
            agent.send(about | call | result)
    agent.send(about | {"reason": "complete"})
    assert runs == 3
    kinds = Event.objects.filter(session__external_id="fee7").order_by("seq").values_list("type", flat=True)
    assert (kinds[0], kinds.last(), [*kinds].count("result")) == ("message", "end", 3)


def test_a_failed_tool_is_an_error(api):
    agent = HookedAgent(api, "claude-code")
    agent.before()
    failed = {"hook_event_name": "PostToolUseFailure", "tool_use_id": "toolu_1", "error": "Exit code 2"}
    agent.send(BEFORE["claude-code"] | failed)
    result = Event.objects.get(type="result")
    assert (result.content, result.is_error) == ("Exit code 2", True)


@pytest.mark.parametrize(
    ("host", "body", "status"),
    [
        ("cobol", {}, 422),
        ("codex", [], 422),
        ("codex", {"session_id": "s"}, 422),
        ("codex", {"session_id": "s", "hook_event_name": "PreToolUse"}, 422),
    ],
)
def test_what_is_no_hook_is_an_error_that_the_connect_page_shows(api, host, body, status):
    answer = api.post(f"/hooks/{host}", body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json")
    assert not Session.objects.exists()


def test_a_hook_is_an_attempt_of_its_host(api, project):
    HookedAgent(api, "codex").before()
    recorder.flush()
    attempt = project.attempts.get()
    assert (attempt.route, attempt.status, attempt.accepted) == ("hooks/codex", 200, 1)
    assert attempt.key_hint.startswith("lg_")


def test_names_that_are_too_long_are_shortened(api):
    agent = HookedAgent(api, "claude-code")
    agent.before(tool_name="mcp__" + "x" * 300, session_id="s" * 300 + "1")
    agent.before(tool_name="mcp__" + "x" * 300, session_id="s" * 300 + "2")
    assert Session.objects.count() == 2
    assert all(len(tool) <= 128 for tool in Event.objects.values_list("tool", flat=True))


def test_the_type_that_curl_sends_by_itself_is_accepted(api):
    body, form = orjson.dumps(BEFORE["codex"]), "application/x-www-form-urlencoded"
    answer = api.raw("/hooks/codex", body, content_type=form)
    assert (answer.status_code, answer.json()) == (200, {})


@pytest.mark.parametrize("host", BEFORE)
def test_a_held_call_does_not_run_and_gets_the_decision_when_it_is_made_again(host, api):
    api.put("/overrides", {"values": {"mode": "ask"}})
    agent = HookedAgent(api, host)
    for _ in range(3):
        agent.before()
    held = agent.before()
    asks = host in ASKING
    assert ("'ask'" in str(held)) == asks
    assert is_denied(host, held) != asks
    assert "on hold" in str(held)
    approval = api.get("/approvals").json()["items"][0]
    again = agent.before()
    assert "on hold" in str(again)
    assert api.get("/approvals").json()["items"][0]["held_calls"] == 2
    api.post(f"/approvals/{approval['id']}/decision", {"choice": "allow_once"})
    allowed = agent.before()
    assert not is_denied(host, allowed)
    assert "on hold" not in str(allowed)


@pytest.mark.parametrize("host", BEFORE)
def test_a_denial_is_found_by_its_loop_once_because_the_call_made_again_has_another_id(host, api):
    api.put("/overrides", {"values": {"mode": "ask"}})
    agent = HookedAgent(api, host)
    for _ in range(4):
        agent.before()
    (approval,) = api.get("/approvals").json()["items"]
    api.post(f"/approvals/{approval['id']}/decision", {"choice": "skip"})
    again = agent.before()
    if host in ASKING:  # their own user was asked
        assert "'ask'" in str(again)
        return
    assert is_denied(host, again)
    assert "an operator skipped it" in str(again)
    assert len(api.get("/approvals").json()["items"]) == 1
    assert "An operator has been asked." in str(agent.before())
    assert [one["state"] for one in api.get("/approvals").json()["items"]] == ["open", "decided"]


@pytest.mark.parametrize("host", BEFORE)
def test_a_hook_that_can_wait_is_told_where(host, api):
    api.put("/overrides", {"values": {"mode": "ask"}})
    for number in range(4):
        ids = {"tool_use_id": f"toolu_{number}"} if host in WITH_IDS else {}
        answer = api.post(f"/hooks/{host}?wait=45", BEFORE[host] | ids).json()
        assert ("wait_url" in answer) == (number == 3 and host not in ASKING)
    (approval,) = api.get("/approvals").json()["items"]
    if "wait_url" in answer:
        assert answer == {
            "wait_url": f"{settings.LIVE_URL}/api/v1/approvals/{approval['id']}?wait=45&hook={host}"
        }


@pytest.mark.parametrize("seconds", ["", "0", "61", "1.5", "-1", "9" * 5000])
def test_a_hook_waits_for_1_to_60_seconds(seconds, api):
    answer = api.post(f"/hooks/codex?wait={seconds}", BEFORE["codex"])
    assert (answer.status_code, answer.json()["path"]) == (422, "wait")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "not_json"),
        (b'{"session_id": [' + b'"x",' * 600_000 + b'"x"]}', 413, "too_large"),
    ],
    ids=("cut", "large"),
)
def test_a_body_that_cannot_be_read_has_the_code_of_the_parser(api, body, status, code):
    answer = api.raw("/hooks/codex", body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def large(tail, characters=2_200_000):
    return "line of a file, äöü\n" * (characters // 20) + tail


@pytest.mark.parametrize("host", BEFORE)
def test_a_large_result_is_cut_with_the_length_and_digest_of_the_whole(host, api):
    agent = HookedAgent(api, host)
    for number in range(2):
        agent.before()
        agent.after(large(f"end {number}"))
    first, second = Event.objects.filter(type="result").order_by("seq")
    assert len(first.content) == 16_384
    assert first.content.startswith("line of a file, äöü\nline")
    assert first.content_length == len(large("end 0"))
    assert first.tail_digest != second.tail_digest


def test_large_equal_results_are_a_loop_and_large_arguments_differ_by_their_ends(api):
    agent = HookedAgent(api, "codex")
    assert [is_denied("codex", (agent.before(), agent.after(large("end")))[0]) for _ in range(4)][-1]
    other = HookedAgent(api, "codex")
    for number in range(6):
        body = {"command": large(f"part {number}")}
        assert not is_denied(
            "codex", other.before(tool_input=body, session_id="other", tool_use_id=f"w{number}")
        )


def test_a_hook_beyond_32_mb_is_rejected(api):
    chunks = itertools.chain([b'{"session_id": "'], itertools.repeat(b"x" * 1_000_000, 40))
    answer = api.raw("/hooks/codex", chunks)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("host", [host for host in BEFORE if host not in ASKING])
def test_one_decision_is_for_two_calls_held_at_once_when_each_is_made_again(host, api):
    api.put("/overrides", {"values": {"budget_max_calls": 3, "budget_ladder": "ask"}})
    agent = HookedAgent(api, host)
    inputs = [{"tool_input": {"command": f"ls {name}"}} for name in "abcd"]
    assert [is_denied(host, agent.before(**one)) for one in inputs] == [False, False, True, True]
    (approval,) = api.get("/approvals").json()["items"]
    assert approval["held_calls"] == 2
    api.post(f"/approvals/{approval['id']}/decision", {"choice": "skip"})
    again = [str(agent.before(**one)) for one in inputs[2:]]
    assert all("an operator skipped it" in one for one in again)
    assert "An operator has been asked." in str(agent.before(**inputs[2]))


@pytest.mark.parametrize("host", BEFORE)
def test_what_is_contained_is_refused_until_it_is_lifted(host, api):
    agent = HookedAgent(api, host)
    assert not is_denied(host, agent.before())
    body = {"scope": "project", "reaction": "stop", "reason": "it deletes files"}
    found = api.post("/containments", body).json()
    assert found["reaches"]["can_stop"] + found["reaches"]["can_block"] == 1
    answer = agent.before()
    assert is_denied(host, answer) or answer.get("continue") is False
    assert "it deletes files" in str(answer)
    api.delete(f"/containments/{found['id']}")
    assert not is_denied(host, agent.before())


@pytest.mark.parametrize("host", ["codex", "gemini-cli", "opencode"])
def test_a_call_that_a_containment_holds_runs_once_it_is_lifted(host, api):
    agent = HookedAgent(api, host)
    found = api.post("/containments", {"scope": "project", "reaction": "hold"}).json()
    assert "on hold" in str(agent.before())
    approval = api.get("/approvals").json()["items"][0]
    api.post(f"/approvals/{approval['id']}/decision", {"choice": "allow_once"})
    allowed = agent.before()
    assert not is_denied(host, allowed)
    assert "on hold" not in str(allowed)
    assert "on hold" in str(agent.before())
    api.delete(f"/containments/{found['id']}")
    assert "on hold" not in str(agent.before())
