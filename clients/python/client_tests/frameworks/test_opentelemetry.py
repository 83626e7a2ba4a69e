"""Real instrumentations and exporter: an agent appears by its environment alone, with a scripted model server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "opentelemetry.distro",
    reason="opentelemetry-distro is not installed: python3 manage.py test clients --install",
)

from tests.support.model_server import Answer, Asked, ModelServer, of_json

PROGRAM = Path(__file__).with_name("observed_agent.py")
WAIT_SECONDS = 30
INSTRUMENTATIONS = {
    "pydantic": ("pydantic",),
    "agents_v2": ("openai", "opentelemetry.instrumentation.openai_agents:OpenAIAgentsInstrumentor"),
    "agents_openinference": (
        "openai",
        "openinference.instrumentation.openai_agents:OpenAIAgentsInstrumentor",
    ),
    "langchain_openinference": ("langchain", "openinference.instrumentation.langchain:LangChainInstrumentor"),
    "langchain_traceloop": ("langchain", "opentelemetry.instrumentation.langchain:LangchainInstrumentor"),
}


def reply(asked: Asked) -> Answer:
    """Search three times, and ask the other agent once if there is one; then say that it is done."""
    document = asked.document
    results = sum(message["role"] == "tool" for message in document["messages"])
    tools = {tool["function"]["name"] for tool in document.get("tools", ())}
    call = {"name": "search", "arguments": '{"q": "x"}'}
    if results == 3 and "ask_inner" in tools:
        call = {"name": "ask_inner", "arguments": '{"q": "y"}'}
    limit = 4 if "ask_inner" in tools else 3
    message: dict[str, Any] = {"role": "assistant", "content": "done"}
    if results < limit:
        calls = [{"id": f"call_{results}", "type": "function", "function": call}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if results < limit else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return of_json(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-5",
            "choices": [choice],
            "usage": usage,
        }
    )


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(reply).running() as running:
        yield running


def waiting_for(found: Any) -> Any:
    """What `found` returns once it is something."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (result := found()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return result


def observed(server: Any, agent: str) -> list[dict[str, Any]]:
    items = server.get("/sessions?limit=100")["items"]
    return [one for one in items if one["integration"] == "otlp" and agent in (one["agent"], one["session"])]


@pytest.mark.parametrize("instrumentation", INSTRUMENTATIONS)
def test_an_agent_appears_by_its_environment_alone(server, name, model, instrumentation):
    kind, *instrumentors = INSTRUMENTATIONS[instrumentation]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"{server.url}/api/v1/otlp",
        "OTEL_EXPORTER_OTLP_HEADERS": f"Authorization=Bearer%20{server.key}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        # Two packages have the same names there.
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "openai_agents,langchain",
        "OPENAI_API_KEY": "none",
    }
    program = Path(sys.executable).with_name("opentelemetry-instrument")
    done = subprocess.run(
        [program, sys.executable, PROGRAM, kind, name, f"{model.url}/v1", *instrumentors],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Failed to export" not in done.stderr
    sessions = waiting_for(lambda: [one for one in observed(server, name) if one["calls"] >= 3])
    assert len(sessions) == 1, (done.stderr[-2000:], json.dumps(observed(server, name)))
    session = sessions[0]["session"]
    calls = server.calls(session)
    assert [call["tool"] for call in calls[:3]] == ["search"] * 3
    assert [call["result"]["content"] for call in calls[:3]] == ["0 hits"] * 3
    assert waiting_for(lambda: server.session(session)["state"] == "ended")
    incidents = [one for one in server.get("/incidents?limit=100")["items"] if one["session"] == session]
    assert [(one["kind"], one["tool"]) for one in incidents] == [("repeat", "search")]
    assert server.session(session)["tokens"] >= 45
    if kind == "pydantic":
        (inner,) = observed(server, f"{name}-inner")
        assert inner["parent_session"] == session
        assert inner["calls"] == 3
