"""Measures what guarding adds to a call: the same calls with and without LoopGuard, in turns.

    python clients/python/added_time.py [--calls 200]

Address and key as for the client. Each way that is installed is one line: the median without and with LoopGuard, what it
adds, the 99th percentile of a guarded call, and the ratio to a bare request to the same server, which shows how busy the
machine is. Every call is another one, so that none is blocked.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from loopguard_client import Guard
from loopguard_client.credentials import Credentials
from loopguard_client.hooks.hosts import HOSTS
from loopguard_client.transport import Transport

WARM_UP = 10
Timed = Callable[[str], Any]


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


def hook(guard: Guard, calls: int) -> tuple[list[float], list[float]]:
    """Measure the line of shell that a coding agent runs before a tool, beside one that does nothing."""
    host = HOSTS["claude-code"]
    line = host.command(guard.url)

    def run(command: str, text: str) -> None:
        body = {**host.sample("added-time"), "tool_use_id": text, "tool_input": {"q": text}}
        subprocess.run(
            ["/bin/sh", "-c", command],
            input=json.dumps(body),
            text=True,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    return in_turns(calls, lambda text: run("cat >/dev/null", text), lambda text: run(line, text))


WAYS = {"decorator": decorator, "event loop": event_loop}
FRAMEWORKS = {"langchain": langchain, "agents": openai_agents}


def main() -> int:
    """Print the table, and return 1 if a call got no verdict."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=200)
    chosen = parser.parse_args()
    found = Credentials.find()
    guard = Guard(found.url, found.key, agent="added-time", budget_seconds=5)
    transport = Transport(found.url, found.key, "added-time")
    transport.prefix = ""
    bare = []
    for _ in range(chosen.calls + WARM_UP):
        began = time.perf_counter()
        transport.send("GET", "/healthz", seconds=5).result()
        bare.append((time.perf_counter() - began) * 1000)
    request = statistics.median(bare[WARM_UP:])
    print(f"A bare request to {guard.url}: median {request:.1f} ms\n")
    print("| way | without, ms | with, ms | added, ms | 99th percentile with, ms | added / bare request |")
    print("| --- | --- | --- | --- | --- | --- |")
    hooks = {"hook (curl)": hook} if Credentials.stored() == found else {}
    ways = WAYS | hooks | {name: way for name, way in FRAMEWORKS.items() if importlib.util.find_spec(name)}
    for name, way in ways.items():
        without, with_ = way(guard, chosen.calls)
        before, after = statistics.median(without), statistics.median(with_)
        last = statistics.quantiles(with_, n=100)[-1]
        print(
            f"| {name} | {before:.2f} | {after:.2f} | {after - before:.2f} | {last:.2f} | {(after - before) / request:.1f} |",
            flush=True,
        )
    if Credentials.stored() != found:
        print("\nThe hook is not measured: its key is another one, or not stored (`loopguard login URL`).")
    guard.close()
    return 1 if guard.status.unguarded_calls else 0


if __name__ == "__main__":
    sys.exit(main())
