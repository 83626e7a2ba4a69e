"""Runs scenarios through the public API: a few agents at a time, each with pauses between calls like a model."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import httpx

from detection.demo.healthy import HEALTHY
from detection.demo.scenario import Scenario, Script, ScriptedCall
from detection.demo.stuck import STUCK

SCENARIOS = (*HEALTHY, *STUCK)
REST_SECONDS = (10.0, 30.0)
OUTAGE_SECONDS = (2.0, 20.0)
PATIENCE_SECONDS = 900.0
"""How long an agent waits for the decision about a held call, at normal speed."""
POLL_SECONDS = 2.0
_DECISIONS = ("allow", "warn", "block", "hold", "stop")


class KeyRejected(Exception):
    """The server does not know the key, or the key lacks a scope."""


@dataclass(kw_only=True)
class Player:
    """Several scripted agents.

    Parameters
    ----------
    url, key
        Address of LoopGuard, and a key with the scopes ``ingest`` and ``guard``.
    agents
        Number of agents that run at the same time.
    speed
        2 runs twice as fast: all pauses are half as long.
    rounds
        Number of rounds of all scenarios; None for endless rounds.
    write
        Receives each line for people.
    """

    url: str
    key: str
    agents: int = 6
    speed: float = 1.0
    rounds: int | None = None
    write: Callable[[str], None] = print
    random: random.Random = field(default_factory=random.Random)
    played: dict[str, str] = field(default_factory=dict)
    _is_away: bool = False

    async def play(self) -> None:
        """Run until every round is done or the task is cancelled.

        Raises
        ------
        KeyRejected
            The server answers 401 or 403.
        """
        headers = {"Authorization": f"Bearer {self.key}"}
        limits = httpx.Limits(max_connections=self.agents)
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=10, limits=limits) as client:
            scenarios = self._rounds()
            async with asyncio.TaskGroup() as group:
                for number in range(self.agents):
                    group.create_task(self._one_agent(client, scenarios, number))

    def _rounds(self) -> Iterator[tuple[Scenario, bool]]:
        """Yield the scenarios in a new random order each round, and whether it is the first round."""
        done = 0
        while self.rounds is None or done < self.rounds:
            scenarios = [*SCENARIOS]
            self.random.shuffle(scenarios)
            if done == 0:
                # The page should soon show a loop beside healthy work.
                scenarios.sort(
                    key=lambda scenario: (
                        scenario.name not in ("same-search", "fix-tests", "open-and-grep", "wait-for-report")
                    )
                )
            yield from ((scenario, done == 0) for scenario in scenarios)
            done += 1

    async def _one_agent(
        self, client: httpx.AsyncClient, scenarios: Iterator[tuple[Scenario, bool]], number: int
    ) -> None:
        await self._pause(number * 1.5)
        for scenario, is_first_round in scenarios:
            name = f"{scenario.agent}/{scenario.name}-{secrets.token_hex(2)}"
            self.played[name] = await Run(self, client, scenario, name).play()
            # Later rounds pause, so that a demo that runs for days does not fill the disk.
            await self._pause(1.0 if is_first_round else self.random.uniform(*REST_SECONDS))

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.speed)

    async def post(self, client: httpx.AsyncClient, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Post until the server answers; wait during an outage."""
        return await self._request(lambda: client.post(path, json=body))

    async def approval(self, client: httpx.AsyncClient, public_id: str, patience: float) -> str | None:
        """Return the decision about a held call, or None if there is none within `patience` seconds."""
        path, deadline = f"/api/v1/approvals/{public_id}", monotonic() + patience
        while monotonic() < deadline:
            await asyncio.sleep(min(POLL_SECONDS, patience))
            answer = await self._request(lambda: client.get(path))
            if answer["state"] != "open":
                return str(answer["decision"]) or None
        return None

    async def _request(self, send: Callable[[], Awaitable[httpx.Response]]) -> dict[str, Any]:
        wait_seconds = OUTAGE_SECONDS[0]
        while True:
            try:
                answer = await send()
                if answer.status_code in (401, 403):
                    raise KeyRejected(f"LoopGuard at {self.url} rejected the key ({answer.status_code}).")
                if answer.status_code < 500 and answer.status_code != 429:
                    answer.raise_for_status()
                    self._note_outage(is_away=False)
                    return dict(answer.json())
                problem = f"status {answer.status_code}"
            except httpx.TransportError as error:
                problem = type(error).__name__
            self._note_outage(is_away=True, problem=problem)
            await asyncio.sleep(wait_seconds * self.random.random())
            wait_seconds = min(wait_seconds * 2, OUTAGE_SECONDS[1])

    def _note_outage(self, *, is_away: bool, problem: str = "") -> None:
        if is_away and not self._is_away:
            self.write(f"LoopGuard at {self.url} cannot be reached ({problem}). The demo waits.")
        elif self._is_away and not is_away:
            self.write("LoopGuard answers again. The demo continues.")
        self._is_away = is_away


class Run:
    """One run of one scenario, as one session.

    Parameters
    ----------
    name
        The session's name.
    """

    def __init__(self, player: Player, client: httpx.AsyncClient, scenario: Scenario, name: str) -> None:
        self._player, self._client, self._scenario, self._name = player, client, scenario, name
        self._script = Script(scenario, player.random)
        self._unsent_results: list[dict[str, object]] = []

    async def play(self) -> str:
        """Run to the end; return ``completed``, ``failed`` or ``stopped``."""
        if prompt := self._script.prompt:
            await self._send([{**self._identity(), "type": "message", "content": prompt}])
        send = self._ask if self._scenario.endpoint == "guard" else self._report
        groups = self._script.groups()
        group, outcome = next(groups), ""
        try:
            while True:
                await self._player._pause(group.seconds)
                group = groups.send(await send(group.calls))
        except StopIteration as end:
            outcome = str(end.value)
        await self._end("cancelled" if outcome == "stopped" else outcome)
        return outcome

    async def _ask(self, calls: Sequence[ScriptedCall]) -> str:
        wanted = [_call(one) for one in calls]
        body = {
            **self._identity(),
            "round": calls[0].round,
            "results": self._unsent_results,
            "calls": wanted,
        }
        answer = await self._player.post(self._client, "/api/v1/guard", body)
        decisions = {verdict["call_id"]: await self._decided(verdict) for verdict in answer["verdicts"]}
        # A blocked call has no result: the model reads the message of the verdict.
        self._unsent_results = [_result(one) for one in calls if decisions[one.call_id] in ("allow", "warn")]
        return max(decisions.values(), key=_DECISIONS.index, default="allow")

    async def _decided(self, verdict: Mapping[str, Any]) -> str:
        """Return the decision about a call; wait for that about a held one, as an agent would."""
        decision = str(verdict["decision"])
        if decision != "hold":
            return decision
        patience = PATIENCE_SECONDS / self._player.speed
        return await self._player.approval(self._client, verdict["approval"]["id"], patience) or decision

    async def _report(self, calls: Sequence[ScriptedCall]) -> str:
        now = datetime.now(UTC).isoformat()
        events = [
            {**self._identity(), "type": "call", "occurred_at": now, "round": one.round, **_call(one)}
            for one in calls
        ]
        events += [
            {**self._identity(), "type": "result", "occurred_at": now, **_result(one)} for one in calls
        ]
        await self._send(events)
        return "allow"

    async def _end(self, outcome: str) -> None:
        events = [{**self._identity(), "type": "result", **result} for result in self._unsent_results]
        await self._send([*events, {**self._identity(), "type": "end", "outcome": outcome}])

    async def _send(self, events: list[dict[str, object]]) -> None:
        for event in events:
            event["id"] = secrets.token_hex(8)
        await self._player.post(self._client, "/api/v1/events", {"events": events})

    def _identity(self) -> dict[str, object]:
        scenario = self._scenario
        return {
            "session": self._name,
            "backend": scenario.backend,
            "model": scenario.model,
            "agent": scenario.agent,
        }


def _call(one: ScriptedCall) -> dict[str, object]:
    usage = {
        "input_tokens": one.input_tokens,
        "output_tokens": one.output_tokens,
        "cost_usd": one.cost_usd,
    }
    return {"call_id": one.call_id, "tool": one.tool, "arguments": one.arguments, "usage": usage}


def _result(one: ScriptedCall) -> dict[str, object]:
    return {"call_id": one.call_id, "content": one.content, "is_error": one.is_error}
