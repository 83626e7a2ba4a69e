"""`loopguard mcp` between the client and the server of the official `mcp` package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="mcp is not installed: python3 manage.py test clients --install")

from mcp import Client, StdioServerParameters

import loopguard_client

SERVER = '''
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("files")

@server.tool()
def search(q: str) -> str:
    """Search."""
    print("ran", file=open(sys.argv[1], "a"))
    return "0 hits"

@server.resource("note://one")
def note() -> str:
    return "a note"

@server.prompt()
def greet(who: str) -> str:
    return f"Greet {who}."

server.run("stdio")
'''

RUNS = "runs"


@pytest.fixture
def parameters(server, name, tmp_path):
    script, runs = tmp_path / "server.py", tmp_path / RUNS
    script.write_text(SERVER)
    runs.touch()

    def of(wrapped: bool) -> StdioServerParameters:
        command = [sys.executable, str(script), str(runs)]
        if wrapped:
            command = [sys.executable, "-m", "loopguard_client", "mcp", "--session", name]
            command += ["--budget-seconds", "20", "--", sys.executable, str(script), str(runs)]
        return StdioServerParameters(
            command=command[0],
            args=command[1:],
            cwd=str(Path(loopguard_client.__file__).parents[1]),
            env={**os.environ, "LOOPGUARD_URL": server.url, "LOOPGUARD_KEY": server.key},
        )

    return of


async def test_three_of_ten_identical_calls_run(parameters, server, name, tmp_path):
    async with Client(parameters(True)) as client:
        answers = [await client.call_tool("search", {"q": "x"}) for _ in range(10)]
    assert (tmp_path / RUNS).read_text().split() == ["ran"] * 3
    assert [bool(answer.is_error) for answer in answers] == [False] * 3 + [True] * 7
    assert answers[2].content[-1].text == "0 hits"
    assert len(answers[2].content) == 2
    assert len(server.calls(name)) == 10


async def test_everything_else_is_as_without_the_wrapper(parameters):
    async def seen(wrapped: bool) -> list[object]:
        async with Client(parameters(wrapped)) as client:
            found = [
                await client.list_tools(), await client.list_resources(), await client.list_prompts(),
                await client.read_resource("note://one"), await client.get_prompt("greet", {"who": "Ada"}),
                await client.call_tool("search", {"q": "once"}),
            ]  # fmt: skip
            return [one.model_dump(mode="json") for one in found]

    assert await seen(True) == await seen(False)
