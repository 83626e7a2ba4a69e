"""Measures what guarding adds to a call: the same calls with and without LoopGuard, in turns.

    python clients/python/added_time.py [--calls 200] [--only WAY]

Address and key as for the client. Each way that is installed is one line: the median without and with LoopGuard, what
it adds, the 99th percentile of a guarded call, and the ratio to a bare request to the same server, which shows how busy
the machine is. Every call is another one, so that none is blocked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from loopguard_client import Guard
from loopguard_client.credentials import Credentials
from loopguard_client.hooks.hosts import HOSTS, Host
from loopguard_client.hooks.plugins import PLUGIN_HOSTS
from loopguard_client.transport import Transport

WARM_UP = 10
Timed = Callable[[str], Any]
Way = Callable[[Guard, int], tuple[list[float], list[float]]]


def texts(number: int) -> Iterator[str]:
    """Yield texts that have nothing in common."""
    return (hashlib.sha256(f"{time.time_ns()}{at}".encode()).hexdigest() for at in range(number))


def search(q: str) -> str:
    """Stand for the tool of an agent, which takes no time."""
    return hashlib.sha256(q.encode()).hexdigest()


def in_turns(calls: int, bare: Timed, guarded: Timed) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each call without and with LoopGuard, measured in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for at, text in enumerate(texts(calls + WARM_UP)):
        for kind, call in enumerate((bare, guarded)):
            began = time.perf_counter()
            call(text)
            if at >= WARM_UP:
                times[kind].append((time.perf_counter() - began) * 1000)
    return times


def decorator(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
    """Measure the decorator."""
    guarded = guard.tool(search)
    with guard.session():
        return in_turns(calls, search, guarded)


def event_loop(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
    """Measure the decorator of a coroutine function."""

    async def bare(q: str) -> str:
        return search(q)

    guarded = guard.tool(name="search")(bare)
    runner = asyncio.Runner()
    with runner, guard.session():
        return in_turns(calls, lambda text: runner.run(bare(text)), lambda text: runner.run(guarded(text)))


def langchain(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
    """Measure LangChain's middleware: a run of one call each."""
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.tools import tool

    from loopguard_client.langchain import LoopGuardMiddleware

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Model:
            return self

    def of(*middleware: Any) -> Timed:
        def run(text: str) -> None:
            call = {"name": "search", "args": {"q": text}, "id": text, "type": "tool_call"}
            model = Model(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("done")]))
            agent = create_agent(model, [tool(search)], middleware=middleware)
            agent.invoke({"messages": "Search."}, {"configurable": {"thread_id": "added-time"}})

        return run

    return in_turns(calls, of(), of(LoopGuardMiddleware(guard)))


def openai_agents(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
    """Measure the guardrails of the OpenAI Agents SDK: a run of one call each."""
    from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
    from agents.testing import ScriptedModel, assistant_message, function_call

    from loopguard_client.openai_agents import input_guardrail, output_guardrail

    set_tracing_disabled(True)
    before, after = [input_guardrail(guard)], [output_guardrail(guard)]

    def of(tool: Any) -> Timed:
        def run(text: str) -> None:
            steps = [[function_call("search", {"q": text}, call_id=text)], [assistant_message("done")]]
            agent = Agent("finder", model=ScriptedModel(steps), tools=[tool])
            Runner.run_sync(agent, "Search.", run_config=RunConfig(group_id="added-time"))

        return run

    guarded = function_tool(search, tool_input_guardrails=before, tool_output_guardrails=after)
    return in_turns(calls, of(function_tool(search)), of(guarded))


def pydantic_ai(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
    """Measure the capability of pydantic-ai: a run of one call each."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from loopguard_client.pydantic_ai import LoopGuard

    def of(*capabilities: Any) -> Timed:
        def run(text: str) -> None:
            def answer(messages: list[Any], _: Any) -> ModelResponse:
                is_first = len(messages) == 1
                return ModelResponse(
                    [ToolCallPart("search", {"q": text}, text) if is_first else TextPart("done")]
                )

            Agent(FunctionModel(answer), tools=[search], capabilities=capabilities).run_sync("Search.")

        return run

    return in_turns(calls, of(), of(LoopGuard(guard, session="added-time-pydantic")))


def crewai(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
    """Measure the hooks of CrewAI: a crew of one call each."""
    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    from crewai import Agent, Crew, Task
    from crewai.llms.base_llm import BaseLLM
    from crewai.tools import tool

    from loopguard_client.crewai import guard_crews

    class Model(BaseLLM):
        q: str = ""

        def call(self, *_: Any, **__: Any) -> Any:
            text, self.q = self.q, ""
            function = {"name": "search", "arguments": json.dumps({"q": text})}
            return [{"id": text, "type": "function", "function": function}] if text else "Final Answer: done"

        def supports_function_calling(self) -> bool:
            return True

    def run(text: str) -> None:
        agent = Agent(
            role="finder", goal="Find.", backstory="None.", llm=Model(model="scripted", q=text), tools=[tool(search)]
        )  # fmt: skip
        Crew(agents=[agent], tasks=[Task(description="Find.", expected_output="x", agent=agent)]).kickoff()

    def guarded(text: str) -> None:
        undo = guard_crews(guard, session="added-time-crewai")
        run(text)
        undo()

    return in_turns(calls, run, guarded)


def mcp(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
    """Measure `loopguard mcp` around a server of the official package."""
    from mcp import Client, StdioServerParameters

    server = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("files")
@server.tool()
def search(q: str) -> str:
    return q
server.run("stdio")
"""
    bare = [sys.executable, "-c", server]
    wrapper = [sys.executable, "-m", "loopguard_client", "mcp", "--budget-seconds", "5", "--", *bare]

    async def measured() -> tuple[list[float], list[float]]:
        times: tuple[list[float], list[float]] = ([], [])

        def of(command: list[str]) -> Client:
            folder = str(Path(__file__).parent)
            return Client(
                StdioServerParameters(command=command[0], args=command[1:], cwd=folder, env={**os.environ})
            )

        async with of(bare) as one, of(wrapper) as other:
            for at, text in enumerate(texts(calls + WARM_UP)):
                for kind, client in enumerate((one, other)):
                    began = time.perf_counter()
                    await client.call_tool("search", {"q": text})
                    if at >= WARM_UP:
                        times[kind].append((time.perf_counter() - began) * 1000)
        return times

    return asyncio.run(measured())


def strands(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
    """Measure the snippet for Strands: a run of one call each."""
    from strands import Agent, tool
    from strands.models import Model as BaseModel

    class Model(BaseModel):
        def __init__(self, text: str) -> None:
            self.text = text

        def update_config(self, **_: Any) -> None:
            pass

        def get_config(self) -> dict[str, Any]:
            return {}

        async def structured_output(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        async def stream(self, *_: Any, **__: Any) -> Any:
            text, self.text = self.text, ""
            use = {"toolUse": {"name": "search", "toolUseId": text}}
            delta = {"toolUse": {"input": json.dumps({"q": text})}}
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": use if text else {}}}
            yield {"contentBlockDelta": {"delta": delta if text else {"text": "done"}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use" if text else "end_turn"}}

    hooks = snippet("strands.hooks")["LoopGuardHooks"](guard.session("added-time-strands"))

    def of(*chosen: Any) -> Timed:
        return lambda text: Agent(
            model=Model(text), tools=[tool(name="search")(search)], hooks=list(chosen), callback_handler=None
        )("Search.")

    return in_turns(calls, of(), of(hooks))


def google_adk(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
    """Measure the snippet for Google ADK: a run of one call each."""
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    class Model(BaseLlm):
        text: str = ""

        async def generate_content_async(self, *_: Any, **__: Any) -> Any:
            text, self.text = self.text, ""
            call = types.FunctionCall(name="search", args={"q": text}, id=text)
            part = types.Part(function_call=call) if text else types.Part(text="done")
            yield LlmResponse(content=types.Content(role="model", parts=[part]))

    plugin = snippet("google.adk.plugins")["LoopGuardPlugin"](guard)
    asked = types.Content(role="user", parts=[types.Part(text="Search.")])

    async def play(text: str, plugins: list[Any]) -> None:
        agent = LlmAgent(name="finder", model=Model(model="scripted", text=text), tools=[search])
        runner = InMemoryRunner(agent=agent, app_name="added_time", plugins=plugins)
        session = await runner.session_service.create_session(app_name="added_time", user_id="u")
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=asked):
            pass

    runner = asyncio.Runner()
    with runner:
        return in_turns(
            calls, lambda text: runner.run(play(text, [])), lambda text: runner.run(play(text, [plugin]))
        )


def snippet(module: str) -> dict[str, Any]:
    """Run the snippet of the documentation that imports from a module, and return its names."""
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
    found = next(
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if f"from {module}" in block
    )
    names: dict[str, Any] = {}
    exec(found, names)
    return names


def hook(host: Host, hook_name: str) -> Way:
    """Return how to measure the line of shell that a coding agent runs, beside one that does nothing."""

    def measure(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
        line = host.command(guard.url, hook_name)

        def run(command: str, text: str) -> None:
            body = {**host.sample("added-time"), "tool_use_id": text, "tool_input": {"q": text}}
            body |= {"hook_event_name": hook_name, "tool_response": text}
            subprocess.run(
                ["/bin/sh", "-c", command],
                input=json.dumps(body),
                text=True,
                stdout=subprocess.DEVNULL,
                check=True,
                timeout=30,
            )

        return in_turns(calls, lambda text: run("cat >/dev/null", text), lambda text: run(line, text))

    return measure


def hooks() -> dict[str, Way]:
    """Return the hooks before and after a tool of each coding agent."""
    return {
        f"hook of {host.title}, {moment} a tool": hook(host, name)
        for host in HOSTS.values()
        for moment, name in (("before", host.before[0]), ("after", AFTER.get(host.name, "PostToolUse")))
    } | (
        {"plugin of OpenCode, before a tool": plugin(0), "plugin of OpenCode, after a tool": plugin(1)}
        if shutil.which("node")
        else {}
    )


PLUGIN_DRIVER = """
import { createInterface } from "node:readline";
const { LoopGuard } = await import(process.argv[1]);
const plugin = await LoopGuard({ directory: process.cwd() });
for await (const q of createInterface({ input: process.stdin })) {
  const call = { sessionID: "added-time", callID: q, tool: "search", args: { q } };
  const began = performance.now();
  await plugin["tool.execute.before"](call, { args: call.args });
  const asked = performance.now();
  await plugin["tool.execute.after"](call, { output: q });
  console.log(asked - began, performance.now() - asked);
}
"""


def plugin(moment: int) -> Way:
    """Return how to measure the plugin of OpenCode before (0) or after (1) a tool, which takes no time without it."""

    def measure(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "loopguard.mjs"
            file.write_text(PLUGIN_HOSTS["opencode"].plugin(guard.url), encoding="utf-8")
            done = subprocess.run(
                ["node", "--input-type=module", "--eval", PLUGIN_DRIVER, str(file)],
                input="\n".join(texts(calls + WARM_UP)),
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            )
        times = [float(line.split()[moment]) for line in done.stdout.splitlines()[WARM_UP:]]
        return [0.0] * len(times), times

    return measure


AFTER = {"gemini-cli": "AfterTool"}
WAYS: dict[str, Way] = {"decorator": decorator, "event loop": event_loop}
FRAMEWORKS: dict[str, Way] = {
    "langchain": langchain, "agents": openai_agents, "pydantic_ai": pydantic_ai, "crewai": crewai, "strands": strands,
    "google.adk": google_adk, "mcp": mcp,
}  # fmt: skip


def _is_installed(name: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(name) is not None
    return False


def main() -> int:
    """Print the table, and return 1 if a call got no verdict."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--only", metavar="WAY", help="measure only ways whose name begins with this")
    chosen = parser.parse_args()
    found = Credentials.find()
    guard = Guard(found.url, found.key, agent="added-time", budget_seconds=5)
    transport = Transport(found.url, found.key, "added-time")
    transport.prefix = ""
    bare = []
    for _ in range(chosen.calls + WARM_UP):
        began = time.perf_counter()
        transport.send("GET", "/healthz", seconds=5).result(10)
        bare.append((time.perf_counter() - began) * 1000)
    request = statistics.median(bare[WARM_UP:])
    print(f"A bare request to {guard.url}: median {request:.1f} ms\n")
    print("| way | without, ms | with, ms | added, ms | 99th percentile with, ms | added / bare request |")
    print("| --- | --- | --- | --- | --- | --- |")
    lines = hooks() if Credentials.stored() == found else {}
    ways = WAYS | lines | {name: way for name, way in FRAMEWORKS.items() if _is_installed(name)}
    for name, way in ways.items():
        if not name.startswith(chosen.only or ""):
            continue
        without, with_ = way(guard, chosen.calls)
        before, after = statistics.median(without), statistics.median(with_)
        last = statistics.quantiles(with_, n=100)[-1]
        print(
            f"| {name} | {before:.2f} | {after:.2f} | {after - before:.2f} "
            f"| {last:.2f} | {(after - before) / request:.1f} |",
            flush=True,
        )
    if Credentials.stored() != found:
        print("\nThe hook is not measured: its key is another one, or not stored (`loopguard login URL`).")
    guard.close()
    return 1 if guard.status.unguarded_calls else 0


if __name__ == "__main__":
    sys.exit(main())
