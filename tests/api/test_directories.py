"""The directory in which a call runs belongs to the identity of a shell's call, through every door that knows it."""

import pytest
from django.test import Client

from detection.engine.calls import Step
from detection.engine.identity import Keyer
from detection.models import Event, EventType, Incident, Project, Role, Session
from detection.selectors.policies import load_overrides
from detection.services.ingestion import import_worker
from detection.services.sessions import tracker_state
from detection.services.sessions.evaluation import evaluate
from tests.api.test_hooks import BEFORE, HookedAgent, is_denied
from tests.api.test_telemetry import send as send_spans
from tests.api.test_telemetry import tool_span
from tests.services.what_if.test_reproduction import replayed
from tests.support.projects import make_member
from tests.support.transcripts import claude_code, lines

PULL = {"tool": "bash", "arguments": {"command": "git pull"}}


class Agent:
    """An agent whose calls return one result."""

    def __init__(self, api, session="s-1"):
        self.api, self.session, self.results, self.number = api, session, [], 0

    def step(self, call, content="Already up to date."):
        self.number += 1
        call = call | {"call_id": f"c-{self.number}"}
        answer = self.api.post("/guard", {"session": self.session, "results": self.results, "calls": [call]})
        assert answer.status_code == 200, answer.text
        answer = answer.json()
        self.results = [{"call_id": call["call_id"], "content": content}]
        return "warn" if answer["notices"] and answer["decision"] == "allow" else answer["decision"]


def test_one_command_in_six_repositories_is_six_calls_and_in_one_of_them_a_loop(api):
    agent = Agent(api)
    assert {agent.step(PULL | {"cwd": f"/src/repo-{number}"}) for number in range(6)} == {"allow"}
    assert not Incident.objects.exists()
    decisions = [agent.step(PULL | {"cwd": "/src/repo-9"}) for _ in range(4)]
    assert decisions[-1] == "block"


@pytest.mark.parametrize(
    "calls",
    [
        [{"cwd": "/src/a", "arguments": {"command": "npm test"}, "tool": "Bash"}] * 4,
        [{"cwd": f"/src/{n}", "tool": "Read", "arguments": {"file_path": "/src/a.py"}} for n in range(4)],
        [{"cwd": f"/src/{n}", "tool": "Read", "arguments": {"file_path": "a.py"}} for n in range(4)],
        [{"cwd": f"/src/{n}", "tool": "search", "arguments": {"q": "a"}} for n in range(4)],
        [
            {"cwd": f"/src/{n}", "tool": "Bash", "arguments": {"command": "cd /src/a && make"}}
            for n in range(4)
        ],
        [
            {"cwd": f"/src/{n}", "tool": "Glob", "arguments": {"pattern": "*.py", "path": "/src"}}
            for n in range(4)
        ],
        [
            {"cwd": "/src", "tool": "shell", "arguments": {"command": "make", "workdir": "a"}},
            {"cwd": "/src/a", "tool": "shell", "arguments": {"command": "make"}},
            {"cwd": "/", "tool": "shell", "arguments": {"command": "make", "workdir": "/src/a/"}},
            {"cwd": "/src/b", "tool": "shell", "arguments": {"command": "make", "workdir": "../a"}},
        ],
    ],
    ids=[
        "a-shell",
        "a-file",
        "a-relative-file",
        "no-shell",
        "goes-elsewhere",
        "an-absolute-search",
        "one-place",
    ],
)
def test_calls_that_do_not_depend_on_the_directory_or_run_in_one_are_identical(api, calls):
    agent = Agent(api)
    assert [agent.step(call, "one text") for call in calls][-1] == "block"


@pytest.mark.parametrize(
    "call",
    [
        lambda n: {"cwd": f"/src/p{n}", "tool": "Bash", "arguments": {"command": "npm test"}},
        lambda n: {"tool": "shell", "arguments": {"command": ["npm", "test"], "workdir": f"/src/p{n}"}},
        lambda n: {"tool": "Bash", "arguments": {"command": f"cd 'packages/p {n}' && npm test"}},
        lambda n: {"tool": "Bash", "arguments": {"command": f"npm --prefix packages/p{n} test"}},
        lambda n: {"tool": "run_command", "cwd": f"C:\\src\\p{n}", "arguments": {"command": "npm test"}},
        lambda n: {"tool": "Bash", "cwd": f"/src/p{n}", "arguments": {"command": "ls"}},
        lambda n: {"tool": "Bash", "arguments": {"command": f"cd /src/p{n} && git status"}},
    ],
    ids=["reported", "argument", "cd", "option", "windows", "look", "status"],
)
def test_one_answer_in_each_of_many_directories_is_no_loop(api, call):
    agent = Agent(api)
    assert {agent.step(call(number), "All tests passed") for number in range(12)} == {"allow"}


def test_one_error_in_each_of_many_directories_is_one(api):
    agent = Agent(api)
    text = "error: cannot find the toolchain"
    calls = [
        {"cwd": f"/src/p{n}", "tool": "Bash", "arguments": {"command": "cargo build"}} for n in range(12)
    ]
    assert "warn" in {agent.step(call, text) for call in calls}


def test_listing_one_directory_after_another_that_shows_the_same_is_a_search(api):
    agent = Agent(api)
    calls = [{"tool": "Bash", "arguments": {"command": f"ls -l /src/p{n}"}} for n in range(12)]
    assert "warn" in {agent.step(call, "total 0") for call in calls}
    named = Agent(api, "s-2")
    calls = [
        {"tool": "run_shell", "arguments": {"command": "ls -l", "dir_path": f"./p{n}"}} for n in range(12)
    ]
    assert "warn" in {named.step(call, "total 0") for call in calls}


@pytest.mark.parametrize("values", [{"preset": "proxy"}, {"preset": "balanced"}, {"result_aware": False}])
def test_settings_that_read_no_results_do_not_read_the_directory(api, values):
    api.put("/overrides", {"values": values})
    agent = Agent(api)
    for number in range(3):
        agent.step(PULL | {"cwd": f"/src/repo-{number}"})
    assert len(set(Event.objects.filter(type="call").values_list("call_key", flat=True))) == 1


@pytest.mark.parametrize("host", BEFORE)
def test_a_hook_tells_directories_apart(host, api):
    agent = HookedAgent(api, host)
    for number in range(6):
        assert not is_denied(host, agent.before(cwd=f"/src/repo-{number}"))
        agent.after(response="Already up to date.", cwd=f"/src/repo-{number}")
    assert not Incident.objects.exists()
    calls = Event.objects.filter(type="call").order_by("seq")
    assert [call.cwd for call in calls] == [f"/src/repo-{number}" for number in range(6)]
    denied = []
    for _ in range(4):
        denied.append(is_denied(host, agent.before(cwd="/src/repo-0")))
        if not denied[-1]:
            agent.after(response="Already up to date.", cwd="/src/repo-0")
    assert denied[-1]


def test_events_transcripts_and_spans_carry_the_directory(api, settings, tmp_path):
    settings.IMPORT_FOLDER = str(tmp_path)
    event = {"type": "call", "session": "posted", "cwd": "/src/a", **PULL}
    assert api.post("/events", event).status_code == 202
    content = lines(claude_code(["git pull"], session="imported", cwd="/src/b"))
    assert api.request(
        "POST", "/imports", content=content, headers={"Content-Type": "application/x-ndjson"}
    ).is_success
    import_worker.run_waiting(lambda: False)
    span = {"gen_ai.tool.call.arguments": "{}", "session.id": "traced", "process.working_directory": "/src/c"}
    assert send_spans(api, tool_span(**span)).status_code == 200
    found = Event.objects.filter(type="call").values_list("session__external_id", "cwd")
    assert set(found) == {("posted", "/src/a"), ("imported", "/src/b"), ("traced", "/src/c")}
    assert not Event.objects.exclude(type="call").exclude(cwd="").exists()


def test_the_directory_is_shown_with_the_call(api, project):
    Agent(api).step(PULL | {"cwd": "/src/<repo>"})
    assert api.get("/sessions/s-1/calls").json()["items"][0]["cwd"] == "/src/<repo>"
    browser = Client()
    browser.force_login(make_member(project, Role.VIEWER))
    page = browser.get(f"/p/{project.slug}/sessions/s-1?call=1").content.decode()
    assert "/src/&lt;repo&gt;" in page


def test_secrets_in_a_directory_are_redacted_before_it_is_stored(api):
    secret = "ghp_" + "a1B2" * 9
    agent = Agent(api)
    for number in range(2):
        agent.step(PULL | {"cwd": f"/tmp/{secret}/{number}"})
    stored = [call.cwd for call in Event.objects.filter(type="call").order_by("seq")]
    assert all(secret not in cwd and "redacted" in cwd for cwd in stored)
    assert stored[0] != stored[1]


@pytest.mark.parametrize(
    ("cwd", "code"), [("a" * 1025, "too_long"), (7, "invalid_type"), ("/src\n", "invalid_characters")]
)
def test_a_directory_is_a_name_of_bounded_length(api, cwd, code):
    answer = api.post("/guard", {"session": "s-1", "calls": [PULL | {"cwd": cwd}]})
    assert (answer.status_code, answer.json()["code"]) == (422, code)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_project_that_stores_no_payloads_keeps_no_directory_and_still_tells_them_apart(
    api, project, is_guarded
):
    project.stores_payloads = False
    project.save()
    calls = [PULL | {"cwd": f"/src/{number % 2}", "call_id": f"c-{number}"} for number in range(4)]
    if is_guarded:
        assert api.post("/guard", {"session": "s-1", "calls": calls}).status_code == 200
    else:
        events = [{"type": "call", "session": "s-1", **call} for call in calls]
        assert api.post("/events", {"events": events}).status_code == 202
        evaluate(Session.objects.get().key)
    assert set(Event.objects.values_list("cwd", "arguments")) == {("", None)}
    assert len(set(Event.objects.values_list("call_key", flat=True))) == 2


def test_a_rebuilt_state_and_a_what_if_identify_the_calls_as_before(api, project):
    agent = Agent(api)
    for number in range(14):
        agent.step(PULL | {"cwd": f"/src/{number % 2 if number < 8 else 7}"})
    session, project = Session.objects.get(), Project.objects.get(pk=project.pk)
    overrides = load_overrides(project.pk)
    _, outcomes = tracker_state.rebuild(
        session, lambda _: overrides.policy_for("", "", "", {}), Keyer(bytes(project.digest_secret))
    )
    again = {
        event.seq: step.call_key
        for event, step in outcomes
        if isinstance(step, Step) and event.type == EventType.CALL
    }
    assert again == dict(Event.objects.filter(type="call").values_list("seq", "call_key"))
    assert len(set(again.values())) == 3
    found, outcome = replayed(session)
    assert len(outcome.recorded) == Incident.objects.count() > 0
    assert found.recorded["reproduced"] == len(outcome.recorded)
    assert (found.gained["count"], found.lost["count"], found.changed["count"]) == (0, 0, 0)
