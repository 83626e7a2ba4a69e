"""CrewAI with a scripted model that calls tools natively."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

if importlib.util.find_spec("crewai") is None:
    pytest.skip("crewai is not installed: python3 manage.py test clients --install", allow_module_level=True)
# Read when it is imported.
os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "CREWAI_TRACING_ENABLED": "false",
}

from crewai import LLM, Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from crewai.tools import tool as crewai_tool

from loopguard_client import HardStop
from loopguard_client.crewai import guard_crews

from .failures import AdapterFailures, call_id

MODEL_CALLS = 10


class ScriptedModel(BaseLLM):
    """Makes the same calls in each of its first answers, then says that it is done."""

    steps: list[list[str]] = []
    asked: int = 0
    ids: str = "unique"
    history: list[Any] = []

    def call(self, messages: Any, *_: Any, **__: Any) -> Any:
        self.asked += 1
        self.history = list(messages)
        if self.asked > len(self.steps):
            return "Final Answer: done"
        return [
            {
                "id": call_id(self.ids, self.asked, at),
                "type": "function",
                "function": {"name": "search", "arguments": json.dumps({"q": q})},
            }
            for at, q in enumerate(self.steps[self.asked - 1])
        ]

    def supports_function_calling(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def guarded(guard) -> Iterator[None]:
    undo = guard_crews(guard)
    yield
    undo()


def crew(model: BaseLLM, tool: Any) -> Crew:
    def search(q: str) -> str:
        """Search the web."""
        return tool.search(q)

    guarded_tool = crewai_tool("search")(search)
    guarded_tool.cache_function = lambda *_: False
    agent = Agent(
        role="finder",
        goal="Find x.",
        backstory="None.",
        llm=model,
        tools=[guarded_tool],
        cache=False,
        max_iter=300,
    )
    task = Task(description="Find x.", expected_output="x", agent=agent)
    return Crew(agents=[agent], tasks=[task], cache=False)


@pytest.mark.parametrize("parallel", [1, 6])
def test_three_identical_calls_run_and_the_eighth_ends_the_run(guard, server, tool, parallel):
    model = ScriptedModel(model="scripted", steps=[["x"] * parallel] * MODEL_CALLS)
    team = crew(model, tool)
    with pytest.raises(HardStop, match="search"):
        team.kickoff()
    assert tool.runs == 3
    assert guard.flush(20)
    calls = server.calls(str(team.id))
    assert {call["agent"] for call in calls} == {"finder"}
    assert [call["decision"] for call in calls].count("block") == 4
    if parallel == 1:
        assert model.asked == 8
        answers = [one["content"] for one in model.history if one["role"] == "tool"]
        assert answers[0] == "0 hits"
        assert answers[2].endswith("\n\n0 hits")
        assert answers[3] == calls[3]["message"]


async def test_a_crew_in_an_event_loop_belongs_to_the_surrounding_session(guard, server, tool, name):
    model = ScriptedModel(model="scripted", steps=[["x"]] * MODEL_CALLS)
    async with guard.session(name):
        with pytest.raises(HardStop):
            await crew(model, tool).kickoff_async()
    assert tool.runs == 3
    assert guard.flush(20)
    assert len(server.calls(name)) == 8


def test_a_call_that_each_kickoff_makes_runs_in_each_kickoff(guard, server, tool):
    model = ScriptedModel(model="scripted", steps=[["x"]])
    team = crew(model, tool)
    for _ in range(8):
        model.asked = 0
        team.kickoff()
    assert tool.runs == 8
    assert guard.flush(20)
    assert {call["decision"] for call in server.calls(str(team.id))} <= {"allow", "warn"}


def test_kickoffs_in_a_tool_of_another_crew_are_no_messages_of_a_user(guard, tool):
    inner_model = ScriptedModel(model="scripted", steps=[["x"]])
    inner = crew(inner_model, tool)

    class Asks:
        def search(self, q: str) -> str:
            inner_model.asked = 0
            return f"{inner.kickoff()}"

    outer = crew(
        ScriptedModel(model="scripted", steps=[[f"x{number}"] for number in range(MODEL_CALLS)]), Asks()
    )
    with pytest.raises(HardStop, match="search"):
        outer.kickoff()
    assert tool.runs == 3


class StreamingServer(BaseHTTPRequestHandler):
    """A model server whose every answer is the same call, in parts, until it has been asked `MODEL_CALLS` times."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1  # type: ignore[attr-defined]
        number = self.server.asked  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        start = {
            "index": 0,
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "search", "arguments": ""},
        }
        parts: list[dict[str, Any]] = [{"role": "assistant", "tool_calls": [start]}]
        parts += [
            {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
            for piece in ('{"q"', ': "x"', "}")
        ]
        reason = "tool_calls"
        if number > MODEL_CALLS:
            parts, reason = [{"role": "assistant", "content": "Final "}, {"content": "Answer: done"}], "stop"
        for delta, end in [*((part, None) for part in parts), ({}, reason)]:
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            chunk = {
                "id": "c",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "gpt-4o",
                "choices": [choice],
            }
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def streaming_model() -> Iterator[LLM]:
    with ThreadingHTTPServer(("127.0.0.1", 0), StreamingServer) as running:
        running.asked = 0  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{running.server_address[1]}/v1"
        yield LLM(model="openai/gpt-4o", base_url=url, api_key="none", stream=True)
        running.shutdown()
        thread.join(10)


def streamed_crew(model: LLM, tool: Any) -> Crew:
    team = crew(model, tool)
    team.stream = True
    return team


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_of_ten_identical_calls_of_a_streamed_crew_three_run(guard, server, tool, streaming_model):
    """The thread that streams ends with `HardStop`; the stream ends without a result."""
    team = streamed_crew(streaming_model, tool)
    chunks = list(team.kickoff())
    assert chunks
    assert tool.runs == 3
    assert guard.flush(20)
    assert [call["decision"] for call in server.calls(str(team.id))].count("block") == 4


async def test_of_ten_identical_calls_of_a_crew_that_streams_in_an_event_loop_three_run(
    guard, server, tool, streaming_model
):
    team = streamed_crew(streaming_model, tool)
    with pytest.raises(HardStop, match="search"):
        async for _ in await team.kickoff_async():
            pass
    assert tool.runs == 3
    assert guard.flush(20)
    assert len(server.calls(str(team.id))) == 8


class TestFailures(AdapterFailures):
    package = "crewai"
    told = "`HardStop` with the reason"
    stop = "raises out of `kickoff`"

    @pytest.fixture
    def guarded(self) -> None:
        """These tests have guards of their own."""

    async def play(self, guard, tool, session, steps, ids="unique"):
        model = ScriptedModel(model="scripted", steps=steps, ids=ids)
        undo = guard_crews(guard, session=session)
        try:
            await crew(model, tool).kickoff_async()
        except HardStop:
            pass
        finally:
            undo()
        return model.asked
