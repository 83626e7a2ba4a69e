"""What is said after a stop is what the agent does: it obeys, ignores, retries, continues, falls silent, or ends."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from detection.console.loops import incident_text
from detection.models import AlertEvent, Incident, Loop, Session
from detection.selectors.loop_runs import bars_of
from detection.services.alerting import rendering
from detection.services.maintenance.hourly_counts import count_calls
from detection.services.sessions.evaluation import evaluate

LOOP = ("search_web", {"q": "reset password"})
OTHER = ("read_page", {"url": "https://example.com/help"})
MCP = "loopguard-client/1 mcp"
SHORT, LONG, IDLE = timedelta(seconds=2), timedelta(minutes=3), timedelta(minutes=11)


class Agent:
    """An agent that asks before each call and reports its results with the next one, as most do.

    Attributes
    ----------
    obeys_blocks
        Whether it gives its model the message instead of running a refused call.
    """

    def __init__(self, api: Any, monkeypatch: Any, *, sender: str = "", obeys_blocks: bool = True) -> None:
        self.api, self.sender, self.obeys_blocks = api, sender, obeys_blocks
        self.results: list[dict[str, Any]] = []
        self.number, self.passed = 0, timedelta()
        monkeypatch.setattr("detection.clock.now", lambda: timezone.now() + self.passed)

    def wait(self, time: timedelta) -> None:
        """Let the time of the server pass."""
        self.passed += time

    def ask(self, *calls: tuple[str, dict[str, str]], run: str = "", **more: Any) -> list[dict[str, Any]]:
        """Ask about the calls of one answer of the model; run those that may run."""
        self.wait(SHORT)
        asked = []
        for tool, arguments in calls or (LOOP,):
            self.number += 1
            call = {"call_id": f"c{self.number}", "tool": tool, "arguments": arguments}
            asked.append(call | {"usage": {"cost_usd": 0.5}} | ({"run": run} if run else {}))
        body = {"session": "s", "agent": "helper", "results": self.results, "calls": asked, **more}
        headers = {"User-Agent": self.sender} if self.sender else {}
        answer = self.api.request("POST", "/guard", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        verdicts = answer.json()["verdicts"]
        self.results = [
            {
                "call_id": call["call_id"],
                "content": "0 hits" if call["tool"] == LOOP[0] else f"{call['call_id']} done",
            }
            for call, one in zip(asked, verdicts, strict=True)
            if one["decision"] in ("allow", "warn") or not self.obeys_blocks
        ]
        return verdicts

    def loop(self) -> dict[str, Any]:
        """Make the same call until the run is asked to stop."""
        for _ in range(12):
            (verdict,) = self.ask()
            if verdict["decision"] == "stop":
                return verdict
        raise AssertionError("nothing stopped it")

    def say(self, **event: Any) -> None:
        """Report an event of the session."""
        self.wait(SHORT)
        assert self.api.post("/events", {"session": "s", **event}).status_code == 202
        evaluate(Session.objects.get().key)

    @property
    def session(self) -> dict[str, Any]:
        """What the API says of the session."""
        return self.api.get("/sessions/s").json()

    @property
    def state(self) -> tuple[str, str]:
        """Its state and its reach."""
        found = self.session
        return found["state"], found["reach"]

    @property
    def continues(self) -> str:
        """Its reach, if nothing says that it is stopped or to be stopped."""
        found = self.session
        assert (found["stopped"], found["state"] in ("running", "looping", "silent")) == (None, True), found
        return str(found["reach"])


@pytest.fixture
def agent(api, monkeypatch):
    return lambda **about: Agent(api, monkeypatch, **about)


SENDERS = pytest.mark.parametrize("sender", ["", "loopguard-client/1"], ids=["guard", "client"])


@SENDERS
def test_a_run_that_obeys_is_stopped_and_can_be(agent, sender):
    run = agent(sender=sender)
    assert "Session stopped" in run.loop()["message"]
    assert run.state == ("stopped", "can_stop")
    run.wait(LONG)
    assert run.state == ("stopped", "can_stop")
    run.say(type="end", outcome="failed")
    assert run.state == ("ended", "can_stop")


@SENDERS
def test_a_run_that_goes_on_after_a_stop_can_only_be_blocked(agent, sender):
    run = agent(sender=sender)
    run.loop()
    assert run.ask(OTHER)[0]["decision"] == "allow"
    assert run.continues == "can_block"
    again = run.loop()["message"]
    assert "Session stopped" not in again
    assert "Every further call of this run is blocked" in again
    assert run.state == ("calls_blocked", "can_block")
    assert [one["decision"] for one in run.ask(OTHER, LOOP)] == ["stop", "stop"]
    assert run.session["stopped"]["refused"] > 1
    for _ in range(15):
        run.ask(("note", {"n": str(run.number)}), run="next")
    assert run.continues == "can_block", "what was seen is not forgotten"


def test_a_run_that_retries_the_stopped_call_is_stopped_all_the_same(agent):
    run = agent()
    run.loop()
    for _ in range(4):
        assert run.ask()[0]["decision"] == "stop"
    assert run.state == ("stopped", "can_stop"), "none of its calls ran"
    assert run.session["stopped"]["refused"] == 5


def test_calls_of_the_answer_that_was_stopped_say_nothing(agent):
    run = agent()
    for _ in range(7):
        run.ask()
    assert [one["decision"] for one in run.ask(LOOP, OTHER)] == ["stop", "allow"]
    assert run.state == ("stopped", "can_stop")
    run.wait(LONG)
    assert run.ask(OTHER, round="seq-of-mine")[0]["decision"] == "allow"
    assert run.continues == "can_block"


def test_a_call_of_the_same_named_answer_says_nothing_in_a_request_of_its_own(agent):
    run = agent()
    for number in range(7):
        run.ask(round=f"resp-{number}")
    assert run.ask(round="resp-7")[0]["decision"] == "stop"
    assert run.ask(OTHER, round="resp-7")[0]["decision"] == "allow"
    assert run.state == ("stopped", "can_stop")
    run.ask(OTHER, round="resp-8")
    assert run.continues == "can_block"


@pytest.mark.parametrize("sender", ["", MCP], ids=["guard", "mcp"])
@pytest.mark.parametrize("turn", ["message", "run", "end", "silence"])
def test_another_turn_ends_the_stop_and_is_no_sign_that_the_run_went_on(agent, turn, sender):
    run = agent(sender=sender)
    run.loop()
    before = run.session["reach"]
    if turn == "message":
        run.say(type="message", role="user", content="Write the report now.")
        assert run.session["stopped"] is None
    elif turn == "end":
        run.say(type="end", outcome="failed")
    elif turn == "silence":
        run.wait(IDLE)
    verdict = run.ask(OTHER, run="second" if turn == "run" else "")[0]
    assert verdict["decision"] == "allow", verdict["message"]
    assert run.continues == before


def test_behind_a_proxy_the_calls_of_the_run_stay_blocked_until_it_falls_silent(agent):
    run = agent(sender=MCP)
    run.loop()
    for _ in range(5):
        run.wait(LONG)
        assert run.ask(OTHER)[0]["decision"] == "stop"
    assert run.state == ("calls_blocked", "can_block")
    run.wait(IDLE)
    assert run.ask(OTHER)[0]["decision"] == "allow"
    assert run.continues == "can_block"


def test_the_stop_of_a_person_is_ended_by_nothing_but_a_person(agent, api):
    run = agent()
    run.ask(OTHER)
    api.post("/sessions/s/stop", {"reason": "enough"})
    run.say(type="message", role="user", content="Go on.")
    run.wait(IDLE)
    assert run.ask(OTHER, run="second")[0]["decision"] == "stop"
    assert run.state == ("stopped", "can_stop")


def test_a_run_that_makes_its_refused_calls_is_called_neither_stopped_nor_blocked(agent, api):
    run = agent(obeys_blocks=False)
    run.loop()
    run.ask()
    assert run.state == ("still_calling", "watch_only")
    run.say(type="result", call_id=f"c{run.number}", content="0 hits")
    (incident,) = api.get("/incidents").json()["items"]
    assert (run.session["blocked"], incident["calls_blocked"]) == (0, 0), "all of them ran"
    count_calls()
    totals = api.get("/statistics").json()["total"]
    assert (totals["blocked"], totals["loop_calls_blocked"], totals["saved_cost_usd_estimate"]) == (
        0,
        0,
        None,
    )


def test_still_calling_is_said_only_while_it_calls(agent, api):
    run = agent(obeys_blocks=False)
    run.loop()
    run.ask()
    assert api.get("/sessions", state="still_calling").json()["items"]
    # Filters and counts take the time of the machine.
    Session.objects.update(last_event_at=timezone.now() - LONG, last_loop_call_at=timezone.now() - LONG)
    assert run.state == ("stop_unenforced", "watch_only")
    assert not api.get("/sessions", state="still_calling").json()["items"]
    assert api.get("/sessions", state="stop_unenforced").json()["items"]
    counts = api.get("/session-counts").json()
    assert (counts["still_calling"], counts["stop_unenforced"], counts["looping_now"]) == (0, 1, 0)
    run.ask()
    assert run.state == ("still_calling", "watch_only")


def obeys(run: Agent) -> None:
    """Read the stop, and end the run without a word."""


def retries(run: Agent) -> None:
    """Make the stopped call again, which does not run."""
    for _ in range(4):
        run.ask()


def ignores(run: Agent) -> None:
    """Run what is refused, and go on."""
    run.ask()
    run.say(type="result", call_id=f"c{run.number}", content="0 hits")


def goes_on(run: Agent) -> None:
    """Do something else instead of ending."""
    for number in range(6):
        run.ask(("note", {"text": f"finding {number}"}))


def ends(run: Agent) -> None:
    """Report the end of the run."""
    run.say(type="end", outcome="failed")


def falls_silent(run: Agent) -> None:
    """Say nothing for longer than a session is waited for."""
    run.wait(timedelta(hours=2))


def is_asked_anew(run: Agent) -> None:
    """Do something else because the user wants it."""
    run.say(type="message", role="user", content="Write the report now.")
    goes_on(run)


REFUSED = 5
"""Calls that are refused until the stop, it included."""


@pytest.mark.parametrize(
    ("behaviour", "state", "reach", "refused"),
    [
        (obeys, "stopped", "can_stop", REFUSED),
        (retries, "stopped", "can_stop", REFUSED + 4),
        (ignores, "still_calling", "watch_only", 0),
        (goes_on, "running", "can_block", REFUSED),
        (ends, "ended", "can_stop", REFUSED),
        (falls_silent, "ended", "can_stop", REFUSED),
        (is_asked_anew, "running", "can_stop", REFUSED),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_everything_that_is_stored_shown_and_sent_says_what_the_agent_did(
    agent, api, behaviour, state, reach, refused
):
    run = agent(obeys_blocks=behaviour is not ignores)
    run.wait(timedelta(hours=-3))  # figures are of what has been
    run.loop()
    behaviour(run)
    assert run.state == (state, reach)
    saved = refused * 0.5 or None
    # What is stored of the session and of its incident, and what exports have.
    assert run.session["blocked"] == refused
    (incident,) = api.get("/incidents").json()["items"]
    assert (incident["calls_blocked"], incident["decision"]) == (refused, "stop")
    assert incident["recovered"] == (True if behaviour in (goes_on, is_asked_anew) else incident["recovered"])
    (exported,) = csv.DictReader(io.StringIO(api.get("/incidents/export", format="csv").text))
    assert exported["calls_blocked"] == str(refused)
    # What is counted, which the weekly report and its alert take.
    count_calls()
    total = api.get("/statistics").json()["total"]
    assert (total["blocked"], total["loop_calls_blocked"]) == (refused, refused)
    assert total["saved_cost_usd_estimate"] == saved
    # What is sent to people: a stop is a request, and its outcome is not foretold.
    for event in AlertEvent.objects.all():
        text = rendering.sentence(event.type, event.actor, event.facts)
        assert not re.search(r"(session|run|agent) (is |was )?stopped", text), text
    # What the pages of the incident and of the loop say.
    went_on = behaviour in (ignores, goes_on, is_asked_anew)
    assert incident_text.did(Incident.objects.get()) == ("asked to stop" if went_on else "stopped")
    bars = bars_of(Loop.objects.get(), timezone.now() - timedelta(hours=4))
    drawn = sum((Counter(bar) for bar in bars.bars), Counter())
    assert set(drawn) == {"went_on" if went_on else "stopped"}
