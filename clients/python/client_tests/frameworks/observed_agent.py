"""Run an agent that is instrumented for OpenTelemetry and searches the same thing three times.

Usage: ``opentelemetry-instrument python observed_agent.py KIND NAME MODEL_URL [MODULE:INSTRUMENTOR]``, with the
exporter's settings in the environment.
"""

from __future__ import annotations

import importlib
import sys


def search(q: str) -> str:
    """Search the web."""
    return "0 hits"


def openai_agents(name: str, url: str) -> None:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    model = OpenAIChatCompletionsModel("gpt-5", AsyncOpenAI(base_url=url, api_key="none"))
    Runner.run_sync(Agent(name, model=model, tools=[function_tool(search)]), "Find x.")


def pydantic_ai(name: str, url: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    Agent.instrument_all()
    model = OpenAIChatModel("gpt-5", provider=OpenAIProvider(base_url=url, api_key="none"))
    inner = Agent(model, name=f"{name}-inner", tools=[search])
    agent = Agent(model, name=name, tools=[search])

    @agent.tool_plain
    async def ask_inner(q: str) -> str:
        """Ask another agent."""
        return (await inner.run(q)).output

    agent.run_sync("Find x.")


def langchain(name: str, url: str) -> None:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    agent = create_agent(ChatOpenAI(model="gpt-5", base_url=url, api_key="none"), [tool(search)])
    agent.invoke({"messages": [("user", "Find x.")]}, {"configurable": {"thread_id": name}})


AGENTS = {"openai": openai_agents, "pydantic": pydantic_ai, "langchain": langchain}

if __name__ == "__main__":
    kind, name, url, *instrumentors = sys.argv[1:]
    for place in instrumentors:
        module, _, instrumentor = place.partition(":")
        getattr(importlib.import_module(module), instrumentor)().instrument()
    AGENTS[kind](name, url)
