"""What every adapter does when LoopGuard, the agent or its values make trouble: a class for each adapter's tests."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from loopguard_client import Guard

from ..proxy import Proxy  # noqa: TID252 (the name of the package depends on where the tests are started)

SECONDS = 60
CLIENT = Path(__file__).resolve().parents[2]
IDENTICAL = [["x"]] * 10
TABLE = CLIENT.parents[1] / "docs" / "integrations.md"
"""The page with the table of all frameworks, whose rows the tests compare with the frameworks."""


class AdapterFailures:
    """Tests of one adapter, which says how it runs an agent."""

    rejected_ids: tuple[str, ...] = ()
    """Of ``reused`` and ``missing``: what the framework itself does not accept."""
    package: str
    """The distribution of the framework."""
    told: str
    """What the person reads of a stop."""
    stop: str
    """What a stop does."""

    async def play(
        self, guard: Guard, tool: Any, session: str, steps: list[list[str]], ids: str = "unique"
    ) -> int:
        """Run an agent whose model makes these searches, one list in each answer, until it ends or is stopped.

        The ids of its calls are ``unique``, ``reused`` in each answer, or ``missing``. Returns how often its model was
        asked.
        """
        raise NotImplementedError

    async def test_the_table_says_what_happens_to_a_stuck_run(self, guard, tool, name):
        asked = await self.play(guard, tool, name, [["x"]] * 40)
        assert (tool.runs, asked) == (3, 8)
        row = f"| `{self.package}` | {version(self.package)} | {tool.runs} | {asked} | {self.told} | {self.stop} |"
        assert row in TABLE.read_text(encoding="utf-8").splitlines()

    @pytest.mark.parametrize("mode", ["refuse", "silent", "fail", "busy", "lose"])
    async def test_the_client_counts_while_the_server_is_away_slow_or_broken(self, server, tool, name, mode):
        with Proxy(server.url).running() as proxy:
            proxy.mode = mode
            guard = Guard(proxy.url, server.key, budget_seconds=0.1)
            await self.play(guard, tool, name, IDENTICAL)
            assert tool.runs == 3
            assert guard.degraded
            assert guard.status.unguarded_calls == 8
            proxy.released.set()
            proxy.mode = "pass"
            assert guard.close(SECONDS)  # the server gets what it missed
        assert [call["tool"] for call in server.calls(name)] == ["search"] * 8

    async def test_different_calls_run_while_the_server_is_away(self, tool, name):
        guard = Guard("http://127.0.0.1:9", "lg_x")
        await self.play(guard, tool, name, [[query] for query in tool.queries])
        assert tool.runs == len(tool.queries)
        assert guard.degraded

    async def test_a_wrong_key_is_visible_and_calls_run(self, server, tool, name):
        guard = Guard(server.url, server.key[:-4] + "0000", budget_seconds=20)
        await self.play(guard, tool, name, [[query] for query in tool.queries])
        assert tool.runs == len(tool.queries)
        assert "answered 401" in guard.status.reason
        assert guard.status.unguarded_calls == len(tool.queries)

    async def test_tools_that_need_a_verdict_do_not_run_without_one(self, tool, name):
        guard = Guard("http://127.0.0.1:9", "lg_x", fail_closed=["search"])
        await self.play(guard, tool, name, [[query] for query in tool.queries])
        assert tool.runs == 0

    def test_a_killed_agent_starts_again_where_it_was(self, server, tool, name):
        # A process of its own, not a fork: frameworks keep threads, and a fork copies the locks these hold.
        adapter = f"{type(self).__module__.rpartition('.')[2]}:{type(self).__name__}"
        agent = subprocess.run(
            [
                sys.executable,
                "-m",
                "client_tests.frameworks.killed_agent",
                adapter,
                server.url,
                server.key,
                name,
            ],
            cwd=CLIENT,
            timeout=SECONDS,
        )
        assert agent.returncode == -signal.SIGKILL
        assert len(server.calls(name)) == 2
        # One call ran. The second one counts once with the same call made again, because it never got a result.
        guard = Guard(server.url, server.key, budget_seconds=20)
        asyncio.run(self.play(guard, tool, name, IDENTICAL))
        assert guard.close(SECONDS)
        assert tool.runs == 2
        assert [call["decision"] for call in server.calls(name)].count("block") == 4

    async def test_two_agents_on_one_session_count_together(self, server, tool, name):
        for times in (2, 10):
            guard = Guard(server.url, server.key, budget_seconds=20)
            await self.play(guard, tool, name, IDENTICAL[:times])
            assert guard.close(SECONDS)
        assert tool.runs == 3
        assert len(server.calls(name)) == 8

    @pytest.mark.parametrize(
        "content", ["y" * 3_000_000, "\x00\x01\x7f\ufffd" * 1_000, ""], ids=["enormous", "binary", "empty"]
    )
    async def test_contents_of_any_kind_reach_the_model_and_the_server(
        self, guard, server, tool, name, content
    ):
        tool.content = content
        await self.play(guard, tool, name, [[query + content[:100_000]] for query in tool.queries])
        assert tool.runs == len(tool.queries)
        assert guard.flush(SECONDS)
        assert guard.status.dropped_events == 0
        results = [call["result"]["content"] for call in server.calls(name)]
        assert len(results) == len(tool.queries)
        assert all(len(result) < 20_000 for result in results)
        if len(content) > 20_000:
            assert all("sha256" in result for result in results)

    @pytest.mark.parametrize("ids", ["reused", "missing"])
    async def test_reused_and_missing_ids_do_not_hide_a_loop(self, guard, server, tool, name, ids):
        if ids in self.rejected_ids:
            pytest.skip("The framework itself rejects or skips such calls.")
        await self.play(guard, tool, name, IDENTICAL, ids)
        assert tool.runs == 3
        assert guard.flush(SECONDS)
        assert len(server.calls(name)) == 8

    @pytest.mark.parametrize("ids", ["reused", "missing"])
    async def test_reused_and_missing_ids_leave_different_calls_alone(self, guard, tool, name, ids):
        if ids in self.rejected_ids:
            pytest.skip("The framework itself rejects or skips such calls.")
        await self.play(guard, tool, name, [[query] for query in tool.queries], ids)
        assert tool.runs == len(tool.queries)

    async def test_a_healthy_run_of_60_calls_is_untouched(self, guard, server, tool, name):
        await self.play(guard, tool, name, [[query] for query in tool.many])
        assert tool.runs == 60
        assert guard.flush(SECONDS)
        assert not server.get(f"/incidents?session={name}")["items"]


def call_id(ids: str, answer: int, at: int) -> str:
    """Return the id of a call of a scripted model."""
    return {"unique": f"call_{os.getpid()}_{answer}_{at}", "reused": f"call_{at}", "missing": ""}[ids]
