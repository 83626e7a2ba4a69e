"""Programs that write their history as text, call tools in text, or send no history; and runs that only they continue."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from detection.models import Event, Incident, Session
from tests.support.model_answers import answered, call

from .agents import Agent
from .conftest import World

STUCK = ["allow", "allow", "warn", "block", "block", "block"]
SHELL = "THOUGHT: look\n\n```mswea_bash_command\ngrep -r {} .\n```"
CODE = "Thought: look\n<code>\nprint(search('{}'))\n</code>"
CODE_AGENT = "Write Python. The code sequence must be opened with '<code>', and closed with '</code>'."


def decisions_of():
    return [*Event.objects.filter(type="call").order_by("seq").values_list("decision", flat=True)]


@dataclass
class TextAgent:
    """Runs what it reads from texts, and sends calls and results as texts."""

    world: World
    system: str = "Fix it."
    session: str = ""
    runs: int = 0
    requests: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self):
        self.messages += [{"role": "system", "content": self.system}, {"role": "user", "content": "find it"}]

    def ask(self):
        self.requests += 1
        session = {"LoopGuard-Session": self.session} if self.session else {}
        with self.world.http("openai", **session) as http:
            answer = http.post("/chat/completions", json={"model": "gpt-x", "messages": self.messages})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]

    def turn(self, result="0 hits"):
        """Ask once; return whether something ran."""
        message = self.ask()
        text = message["content"] or ""
        if calls := message.get("tool_calls"):
            listed = [
                {**one, "function": one["function"] | {"arguments": json.loads(one["function"]["arguments"])}}
                for one in calls
            ]
            self.add(f"{text}\nCalling tools:\n{listed}", f"Observation:\n{result}")
        elif "```mswea_bash_command\n" in text:
            self.add(text, f"<returncode>1</returncode>\n<output>\n{result}\n</output>")
        elif "<code>\n" in text:
            function = {
                "name": "python_interpreter",
                "arguments": text.split("<code>\n")[1].split("\n</code>")[0],
            }
            listed = [{"id": f"call_{self.runs + 1}", "type": "function", "function": function}]
            self.add(f"{text}\nCalling tools:\n{listed}", f"Observation:\nExecution logs:\n{result}")
        else:
            self.messages.append({"role": "assistant", "content": text})
            return False
        self.runs += 1
        return True

    def add(self, said, result):
        self.messages += [{"role": "assistant", "content": said}, {"role": "user", "content": result}]


def answers(world, form, query=lambda: "x"):
    def script(asked):
        if form == "listed":
            return answered(asked, "openai", "Let me see.", [call(q=query())])
        return answered(asked, "openai", (SHELL if form == "shell" else CODE).format(query()))

    world.model.script = script


every_text = pytest.mark.parametrize("form", ["listed", "shell", "code"])


@every_text
def test_a_call_repeated_in_text_is_stopped(world: World, form):
    answers(world, form)
    agent = TextAgent(world, CODE_AGENT)
    while agent.turn():
        assert agent.runs <= 3
    assert agent.runs == 3
    assert decisions_of() == STUCK
    assert Session.objects.count() == 1
    assert Incident.objects.get().kind == "repeat"
    assert len(world.model.asked) == 6
    # The model is asked again in its own protocol.
    last = world.model.asked[-1].document["messages"][-1]
    assert last["role"] == ("tool" if form == "listed" else "user")


@every_text
def test_a_healthy_run_in_text_is_untouched(world: World, form):
    answers(world, form, lambda: f"page {len(world.model.asked)}")
    agent = TextAgent(world, CODE_AGENT)
    for number in range(12):
        assert agent.turn(f"page {number}")
        assert world.model.asked[-1].document["messages"] == agent.messages[: 2 * number + 2]
    assert decisions_of() == ["allow"] * 12
    results = Event.objects.filter(type="result").order_by("seq")
    assert "page 0" in results[0].content
    assert len(results) == 11


@every_text
def test_a_warning_precedes_the_observation(world: World, form):
    answers(world, form)
    agent = TextAgent(world, CODE_AGENT)
    for _ in range(4):
        agent.turn()
    observation = world.model.asked[3].document["messages"][-1]
    assert observation["role"] == "user"
    assert "3 times" in json.dumps(observation["content"])
    assert "0 hits" in json.dumps(observation["content"])


@pytest.mark.parametrize(
    "text", [CODE.format("x"), "Try this:\n```bash\nls\n```", "Calling tools:\nwe call them by name."]
)
def test_code_in_an_answer_is_no_call_unless_the_instructions_demand_it(world: World, text):
    world.model.script = lambda asked: answered(asked, "openai", text)
    agent = TextAgent(world, session="s-1")
    for _ in range(6):
        assert agent.ask()["content"] == text
        agent.messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "and now?"}]
    assert decisions_of() == []


# Requests without a history


def extract(world, prompt="What is meant?", history=(), **headers):
    choice = {"type": "function", "function": {"name": "search"}}
    request = {
        "model": "gpt-x",
        "tool_choice": choice,
        "messages": [{"role": "user", "content": prompt}, *history],
    }
    with world.http("openai", **headers) as http:
        return http.post("/chat/completions", json=request).json()["choices"][0]["message"]


def test_equal_requests_without_a_history_are_counted(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    got = [extract(world) for _ in range(4)]
    assert [bool(one.get("tool_calls")) for one in got] == [True, True, True, False]
    complaint = [got[-1], {"role": "user", "content": "Validation Error found:\nno call"}]
    assert not extract(world, history=complaint).get("tool_calls")
    assert Session.objects.count() == 1
    assert decisions_of()[:6] == ["allow"] * 3 + ["block"] * 3


@pytest.mark.parametrize(
    ("prompt", "headers"),
    [
        (lambda n: f"What is meant by {n}?", lambda n: {}),
        (lambda n: "What is meant?", lambda n: {"LoopGuard-Session": f"s-{n}"}),
    ],
)
def test_other_requests_without_a_history_are_not(world: World, prompt, headers):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    got = [extract(world, prompt(n), **headers(n)) for n in range(8)]
    assert all(one.get("tool_calls") for one in got)
    assert Session.objects.count() == 8


def test_a_request_without_a_history_that_is_sent_again_counts_once(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    for count in ("0", "1", "1"):
        assert extract(world, **{"x-stainless-retry-count": count}).get("tool_calls")
    assert decisions_of() == ["allow"]


def test_agents_that_begin_alike_have_their_own_sessions(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    for _ in range(6):
        assert Agent(world, session="").turn().calls
    assert Session.objects.count() == 6
    assert set(decisions_of()) == {"allow"}


# Runs that have ended


def test_a_program_that_continues_an_ended_run_is_answered_without_the_model(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    agent = Agent(world)
    texts = []
    for _ in range(12):
        texts.append(agent.run().text)
        agent.say("go")
    assert agent.runs == 3
    assert len(world.model.asked) == 8
    assert all("LoopGuard ended this run" in text for text in texts[2:])
    assert Session.objects.get().state == "stopped"


def test_a_person_who_asks_for_something_else_gets_the_model(world: World):
    world.model.script = lambda asked: answered(asked, "openai", "", [call()])
    agent = Agent(world)
    for _ in range(4):
        agent.run()
        agent.say("go")
    asked = len(world.model.asked)
    agent.messages.pop()
    time.sleep(3.2)
    world.model.script = lambda asked: answered(asked, "openai", "Done.")
    agent.say("then tell me what you have")
    assert agent.run().text == "Done."
    assert len(world.model.asked) == asked + 1
