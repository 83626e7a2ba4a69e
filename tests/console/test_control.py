"""A stop is called what has come of it, whatever way calls arrive, and nothing says "stopped" of a run that continues."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import Incident, IncidentActivity, Session
from detection.services.retention import retention
from detection.services.sessions.evaluation import evaluate
from tests.api.conftest import Api, speaking
from tests.api.test_hooks import HookedAgent, is_denied
from tests.api.test_telemetry import accepted, send, tool_span
from tests.console.scenes import make_world, run_address, tabs_of
from tests.support.projects import make_key

pytestmark = pytest.mark.django_db
CALLED_STOPPED = re.compile(
    r"\b(?:session|sessions|run|it)\s+(?:is |was |were |has been |have been )?(?:still )?stopped\b"
    r"|<span class=\"chip stop\">\s*Stopped|\b1 sessions? stopped|stays stopped",
    re.IGNORECASE,
)

WOULD_HAVE_RECEIVED = "Session stopped to prevent unintended looping."
"""Of the message of a stop, which pages quote as what an agent would have received."""


@pytest.fixture
def world():
    made = make_world()
    Incident.objects.update(session=None)  # Only on one server does the database do so.
    Session.objects.all().delete()
    return made


@pytest.fixture
def api(world):
    with speaking() as client:
        yield Api(client, make_key(world.project))


class Reporter:
    """An agent that reports its calls after they ran."""

    def __init__(self, api):
        self.api, self.calls = api, 0

    def act(self):
        call = {"type": "call", "session": "run", "tool": "fetch", "arguments": {"q": "x"}, "agent": "a"}
        self.calls += 1
        about = {"call_id": f"c{self.calls}"}
        result = {"type": "result", "session": "run", "content": "0 hits", **about}
        assert self.api.post("/events", {"events": [call | about, result]}).status_code == 202


class Exporter(Reporter):
    """An agent with OpenTelemetry."""

    def act(self):
        self.calls += 1
        request = tool_span(
            trace=b"t" * 16,
            span=self.calls.to_bytes(8),
            start=10**18 + self.calls * 10**9,
            **{
                "gen_ai.tool.call.arguments": '{"q": "x"}',
                "gen_ai.tool.call.result": "0 hits",
                "gen_ai.conversation.id": "run",
            },
        )
        assert not accepted(send(self.api, request)).rejected_spans


class Ignorer(Reporter):
    """A program that asks the guard, and runs every call whatever the verdict is."""

    def act(self):
        self.calls += 1
        call = {"call_id": f"c{self.calls}", "tool": "fetch", "arguments": {"q": "x"}}
        assert self.api.post("/guard", {"session": "run", "calls": [call]}).status_code == 200
        result = {"call_id": call["call_id"], "content": "0 hits"}
        assert self.api.post("/guard", {"session": "run", "results": [result]}).status_code == 200


class Untrusted(Reporter):
    """Codex whose hook before a tool is not trusted: results arrive, and nobody was asked."""

    def act(self):
        self.calls += 1
        body = {"session_id": "run", "tool_name": "shell", "tool_input": {"command": ["ls"]}}
        self.api.post(
            "/hooks/codex",
            body | {"hook_event_name": "PostToolUse", "tool_use_id": f"c{self.calls}", "tool_response": "x"},
        )


def shown(world, api, session):
    """Everything that the console and the API show of a session, by place."""
    base = world.base
    pages = [
        "sessions",
        "session/tabs",
        f"sessions/{session}",
        f"sessions/{session}?tab=calls",
        "loops/history",
        "held",
    ]
    pages += ["loops", "insights", "attention"]
    pages += [
        run_address(row).removeprefix(f"{base}/") for row in Incident.objects.filter(session_name=session)
    ]
    found = {}
    for page in pages:
        response = world.client.get(f"{base}/{page}")
        found[page] = re.sub(r"\s+", " ", html.unescape(response.content.decode()))
    for path in (f"/sessions/{session}", "/sessions", "/incidents", "/approvals", "/alerts/events"):
        found[path] = api.get(path).text
    found["activity"] = " ".join(IncidentActivity.objects.values_list("note", flat=True))
    return found


@pytest.mark.parametrize(
    ("kind", "reach", "state"),
    [
        (Reporter, "watch_only", "stop_unenforced"),
        (Exporter, "watch_only", "stop_unenforced"),
        (Untrusted, "watch_only", "stop_unenforced"),
        (Ignorer, "can_stop", "still_calling"),
    ],
)
@pytest.mark.django_db(transaction=True)
def test_a_run_that_continues_after_a_stop_is_called_stopped_nowhere(world, api, kind, reach, state):
    agent = kind(api)
    for _ in range(6):
        agent.act()
        for session in Session.objects.all():
            evaluate(session.key)
    name = Session.objects.get().external_id
    before = api.get(f"/sessions/{name}").json()
    assert before["reach"] == reach
    answer = world.client.post(
        f"{world.base}/session/change", {"session": name, "reason": "enough"}, follow=True
    )
    assert (
        "stops before its next call" in answer.content.decode()
        if reach == "can_stop"
        else "cannot be enforced" in answer.content.decode()
    )
    assert api.get(f"/sessions/{name}").json()["state"] == {"can_stop": "stopping"}.get(
        reach, "stop_unenforced"
    )
    for _ in range(4):
        agent.act()
        for session in Session.objects.all():
            evaluate(session.key)
    after = api.get(f"/sessions/{name}").json()
    assert (after["state"], after["reach"]) == (state, "watch_only")
    assert after["in_loop"] == (kind is not Untrusted and kind is not Ignorer)
    if kind is not Untrusted:  # its results are no calls
        assert after["stopped"]["ran"] == 4
    if kind in (Reporter, Exporter):
        counts = api.get("/session-counts").json()
        assert (counts["looping_now"], counts["stopped"], counts[state]) == (1, 0, 1)
    for place, text in shown(world, api, name).items():
        text = text.replace(WOULD_HAVE_RECEIVED, "")
        found = CALLED_STOPPED.search(text)
        assert not found, (place, text[max(0, found.start() - 200) : found.end() + 100])
    assert api.get("/sessions", state="stopped").json()["items"] == []


def test_an_agent_that_ignores_the_detection_stays_on_now_while_it_calls(world, api):
    results: list[dict[str, object]] = []
    for number in range(1, 12):
        call = {"call_id": f"c{number}", "tool": "fetch", "arguments": {"q": "x"}}
        # As most agents do: the result comes with the next call.
        assert api.post("/guard", {"session": "run", "results": results, "calls": [call]}).status_code == 200
        results = [{"call_id": call["call_id"], "content": "0 hits"}]
    after = api.get("/sessions/run").json()
    assert (after["state"], after["reach"], after["in_loop"]) == ("still_calling", "watch_only", True)
    assert after["stopped"]["ran"] > 1
    page = world.client.get(f"{world.base}/now").content.decode()
    assert "Still calling after the stop" in page
    assert "Check its integration" in page
    assert "Withdraw" not in page, "nobody asked for the stop"
    assert api.get("/loops").json()["items"][0]["form"] == "looping_now"
    listed = world.client.get(f"{world.base}/sessions", {"q": "is:looping_now"}).content.decode()
    assert tabs_of(listed)["looping"] == 1, "as Now counts"
    assert f"{world.base}/sessions/run" in listed


def test_undo_of_a_stop_resumes_only_what_it_has_stopped(world, api):
    for name in ("before", "one", "two"):
        for _ in range(4):
            api.call(name)
    api.post("/sessions/before/stop")
    names = {"session": ["before", "one", "two"]}
    page = world.client.post(f"{world.base}/session/change", names, follow=True).content.decode()
    form = next(one for one in re.findall(r"<form.*?</form>", page, re.DOTALL) if "Undo<kbd>" in one)
    undone = re.findall(r'name="session" value="([^"]*)"', form)
    assert undone == ["one", "two"]
    world.client.post(f"{world.base}/session/change", {"session": undone, "action": "resume"})
    states = {name: api.get(f"/sessions/{name}").json()["state"] for name in ("before", "one", "two")}
    assert states == {"before": "stopping", "one": "looping", "two": "looping"}


def test_now_says_that_a_run_has_ended_by_a_stop(world, api):
    api.call("run")
    world.client.post(f"{world.base}/session/change", {"session": "run", "reason": "enough"})
    assert "no call since" in world.client.get(f"{world.base}/now").content.decode()
    assert api.call("run").json()["decision"] == "stop"
    end = {"type": "end", "session": "run", "outcome": "cancelled"}
    assert api.post("/events", {"events": [end]}).status_code == 202
    evaluate(Session.objects.get().key)
    page = world.client.get(f"{world.base}/now").content.decode()
    assert "Stopped · 1 refused, then it ended, by" in " ".join(page.split())


def test_a_run_that_is_refused_is_stopping_then_stopped_and_its_loop_ends_then(world, api):
    for _ in range(4):
        api.call("run")
    assert api.post("/sessions/run/stop", {"reason": "enough"}).json()["state"] == "stopping"
    assert api.get("/sessions/run").json()["in_loop"]
    assert Incident.objects.filter(session_name="run", ended_at=None).exists()
    assert api.call("run").json()["decision"] == "stop"
    session = api.get("/sessions/run").json()
    assert (session["state"], session["stopped"]["refused"], session["in_loop"]) == ("stopped", 1, False)
    assert not Incident.objects.filter(session_name="run", ended_at=None).exists()


def test_a_message_instead_of_a_result_is_no_sign_of_a_run(world, api):
    api.call("run")
    api.post("/sessions/run/stop")
    refused = api.call("run").json()["verdicts"][0]
    result = {"call_id": refused["call_id"], "content": f"Error: {refused['message']}", "is_error": True}
    api.post("/guard", {"session": "run", "results": [result]})
    assert api.get("/sessions/run").json()["state"] == "stopped"


@pytest.mark.django_db(transaction=True)
def test_codex_has_its_calls_blocked_until_one_of_them_runs(world, api):
    agent = HookedAgent(api, "codex")
    agent.before()
    agent.after()
    name = Session.objects.get().external_id
    assert api.post(f"/sessions/{name}/stop").json()["state"] == "stopping"
    assert is_denied("codex", agent.before())
    session = api.get(f"/sessions/{name}").json()
    assert (session["state"], session["reach"]) == ("calls_blocked", "can_block")
    agent.after()
    assert api.get(f"/sessions/{name}").json()["state"] == "still_calling"


def test_a_session_is_looping_now_for_two_minutes_then_silent_then_ended_without_a_write(
    world, api, settings
):
    for _ in range(4):
        api.call("run")
    for age, state, looping_now in ((60, "looping", 1), (121, "silent", 0), (3601, "ended", 0)):
        at = timezone.now() - timedelta(seconds=age)
        Session.objects.update(last_event_at=at, last_loop_call_at=at)
        session, counts = api.get("/sessions/run").json(), api.get("/session-counts").json()
        assert (session["state"], counts["looping_now"], counts[state]) == (state, looping_now, 1)
        assert session["in_loop"] == (state != "ended") == bool(counts["in_loop"])
        assert [one["session"] for one in api.get("/sessions", state=state).json()["items"]] == ["run"]
        assert world.client.get(f"{world.base}/attention").json()["badges"]["now"]["count"] == looping_now
    settings.LOOPING_FOR = timedelta(seconds=10)
    at = timezone.now() - timedelta(seconds=11)
    Session.objects.update(last_event_at=at, last_loop_call_at=at)
    assert api.get("/sessions/run").json()["state"] == "silent"


def test_an_open_or_held_call_keeps_a_session_from_ending(world, api):
    api.call("open", arguments={"n": 1})
    call_id = api.get("/sessions/open/calls").json()["items"][0]["call_id"]
    api.post("/guard", {"session": "open", "results": [{"call_id": call_id, "content": "x"}]})
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    assert api.get("/sessions/open").json()["state"] == "ended"
    api.call("open", arguments={"n": 2})
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    assert api.get("/sessions/open").json()["state"] == "idle"
    retention.end_abandoned()
    assert api.get("/sessions/open").json()["ended_at"] is None


def test_a_stop_that_cannot_be_enforced_is_withdrawn(world, api):
    Reporter(api).act()
    evaluate(Session.objects.get().key)
    api.post("/sessions/run/stop")
    page = world.client.get(f"{world.base}/sessions/run").content.decode()
    assert "Withdraw" in page
    assert api.post("/sessions/run/resume").json()["state"] == "running"
