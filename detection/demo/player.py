"""Runs scenarios through the public API: a few agents at a time, each with pauses between calls like a model."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from detection.demo.healthy import HEALTHY
from detection.demo.scenario import DemoCall, Scenario
from detection.demo.stuck import STUCK

SCENARIOS = (*HEALTHY, *STUCK)
HAMMER_TRIES = 5
REST_SECONDS = (10.0, 30.0)
OUTAGE_SECONDS = (2.0, 20.0)
NOT_RUN = frozenset(("block", "hold"))
_INPUT_TOKENS, _OUTPUT_TOKENS, _COST_USD = (400, 3000), (20, 160), (0.0005, 0.006)


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
        wait_seconds = OUTAGE_SECONDS[0]
        while True:
            try:
                answer = await client.post(path, json=body)
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
        self._values: dict[str, object] = dict(player.random.choice(scenario.subjects))
        self._unsent_results: list[dict[str, object]] = []
        self._count = 0

    async def play(self) -> str:
        """Run to the end; return ``completed``, ``failed`` or ``stopped``."""
        if self._scenario.says:
            await self._say(self._scenario.says)
        outcome = "completed"
        async for decision in self._decisions():
            if decision == "stop":
                outcome = "stopped"
                break
        else:
            if self._scenario.stuck and not self._scenario.close:
                outcome = "failed"
        await self._end("cancelled" if outcome == "stopped" else outcome)
        return outcome

    async def _decisions(self) -> AsyncIterator[str]:
        """Make the calls of the script, follow the decisions, and yield each of them."""
        for call in self._scenario.opening:
            yield await self._make([call])
        tries_left = HAMMER_TRIES
        for lap in range(1, self._scenario.laps + 1):
            self._values |= {"n": lap, "m": lap * 10}
            groups = (
                [[*self._scenario.repeated]]
                if self._scenario.together
                else [[c] for c in self._scenario.repeated]
            )
            leaves = False
            for group in groups:
                decision = await self._make(group)
                yield decision
                if decision == "warn" and self._player.random.random() < self._scenario.recovers:
                    leaves = True
                if decision in NOT_RUN:
                    tries_left -= 1
                    leaves = leaves or self._scenario.on_block == "turns" or tries_left == 0
                if leaves:
                    break
            if leaves:
                break
        for call in self._scenario.close:
            yield await self._make([call])

    async def _make(self, calls: list[DemoCall]) -> str:
        """Make the calls of one model response; return the strictest decision."""
        if not calls:
            return "allow"
        await self._player._pause(sum(call.seconds for call in calls) * self._player.random.uniform(0.7, 1.3))
        self._values["roll"] = self._player.random.randint(100, 999)
        wanted: list[dict[str, object]] = []
        results: list[dict[str, object]] = []
        round_id = f"r{self._count}"
        for call in calls:
            self._count += 1
            call_id = f"call_{self._count}"
            arguments, content = call.filled(self._values)
            wanted.append(
                {
                    "call_id": call_id,
                    "tool": call.tool,
                    "arguments": arguments,
                    "usage": self._usage(),
                }
            )
            results.append({"call_id": call_id, "content": content, "is_error": call.is_error})
        return await (self._ask if self._scenario.endpoint == "guard" else self._report)(
            round_id, wanted, results
        )

    async def _ask(
        self, round_id: str, wanted: list[dict[str, object]], results: list[dict[str, object]]
    ) -> str:
        body = {**self._identity(), "round": round_id, "results": self._unsent_results, "calls": wanted}
        answer = await self._player.post(self._client, "/api/v1/guard", body)
        # A blocked call has no result: the model reads the message of the verdict.
        may_run = {v["call_id"] for v in answer["verdicts"] if v["decision"] in ("allow", "warn")}
        self._unsent_results = [result for result in results if result["call_id"] in may_run]
        return str(answer["decision"])

    async def _report(
        self, round_id: str, wanted: list[dict[str, object]], results: list[dict[str, object]]
    ) -> str:
        now = datetime.now(UTC).isoformat()
        events = [
            {**self._identity(), "type": "call", "occurred_at": now, "round": round_id, **call}
            for call in wanted
        ]
        events += [{**self._identity(), "type": "result", "occurred_at": now, **result} for result in results]
        await self._send(events)
        return "allow"

    async def _say(self, text: str) -> None:
        call = DemoCall("", text, "")
        await self._send([{**self._identity(), "type": "message", "content": call.filled(self._values)[0]}])

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

    def _usage(self) -> dict[str, object]:
        draw = self._player.random
        return {
            "input_tokens": draw.randint(*_INPUT_TOKENS),
            "output_tokens": draw.randint(*_OUTPUT_TOKENS),
            "cost_usd": round(draw.uniform(*_COST_USD), 5),
        }
