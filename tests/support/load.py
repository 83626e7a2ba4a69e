"""Agents that send until each request is acknowledged, and the counts of what is stored: lost 0, doubled 0."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
import psycopg

from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain_http import PLAIN

AGENTS = 4
SECONDS = 20
PAUSE_SECONDS = 0.1
CALLS_PER_SESSION = 200


@dataclass
class Agent:
    """Reports one call, has the next one judged, and so on; each is sent again until it is acknowledged.

    Attributes
    ----------
    acknowledged
        The ids of calls, in order.
    unanswered
        Why requests had to be sent again: a status, or the name of an exception.
    """

    load: Load
    name: str
    acknowledged: list[str] = field(default_factory=list)
    unanswered: Counter[int | str] = field(default_factory=Counter)

    def run(self) -> None:
        for number in itertools.count():
            call_id = f"{self.name}-{number}"
            while not self._send(number, call_id):
                if self.load.ended.wait(PAUSE_SECONDS):
                    return
            self.acknowledged.append(call_id)
            if self.load.ended.is_set():
                return

    def _send(self, number: int, call_id: str) -> bool:
        session = f"{self.name}-{number // CALLS_PER_SESSION}"  # below the limit of calls of a session
        call = {"call_id": call_id, "tool": "look", "arguments": {"n": number}}
        path, body = (
            ("guard", {"session": session, "calls": [call]})
            if number % 2 == 0
            else ("events", {"events": [call | {"id": call_id, "type": "call", "session": session}]})
        )
        try:
            # A connection each, as that of a load balancer: the next one may go to another process.
            answer = httpx.post(
                f"{self.load.address()}/api/v1/{path}",
                json=body, headers=self.load.headers, timeout=SECONDS, verify=PLAIN,
            )  # fmt: skip
        except httpx.TransportError as error:
            self.unanswered[type(error).__name__] += 1
            return False
        if answer.is_success:
            return True
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True), answer.text
        self.unanswered[answer.status_code] += 1
        return False


class Load:
    """Agents that work for the block.

    Parameters
    ----------
    address
        Asked before each request for where it goes.
    """

    def __init__(self, address: Callable[[], str], key: str, agents: int = AGENTS) -> None:
        self.address, self.headers = address, {"Authorization": f"Bearer {key}"}
        self.ended = threading.Event()
        self.agents = [Agent(self, f"agent-{number}") for number in range(agents)]
        self._pool = ThreadPoolExecutor(agents)
        self._runs: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._runs = [self._pool.submit(agent.run) for agent in self.agents]
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._pool.shutdown()
        for run in self._runs:
            run.result()

    @property
    def unanswered(self) -> Counter[int | str]:
        """Why requests of all agents had to be sent again."""
        return sum((agent.unanswered for agent in self.agents), Counter())

    def work_on(self, calls: int = 6) -> None:
        """Wait until each agent has had so many more calls acknowledged."""
        due = [len(agent.acknowledged) + calls for agent in self.agents]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(len(agent.acknowledged) < number for agent, number in zip(self.agents, due, strict=True)):
            assert time.monotonic() < deadline, self.unanswered
            for run in self._runs:
                assert not run.done() or run.result() is None
            time.sleep(0.05)

    def check_counts(self, database: psycopg.Connection[Any]) -> None:
        """Check that each acknowledged call is stored, none twice, and that its session has counted each once."""
        stored = Counter(
            call_id
            for (call_id,) in database.execute(
                "SELECT e.call_id FROM detection_event e JOIN detection_session s"
                " ON (s.project_id, s.id) = (e.project_id, e.session_id) WHERE s.external_id LIKE 'agent-%'"
            ).fetchall()
        )
        acknowledged = [call for agent in self.agents for call in agent.acknowledged]
        assert [call for call in acknowledged if not stored[call]] == [], "lost"
        assert [call for call, number in stored.items() if number > 1] == [], "doubled"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (counted := self._counted(database)) != len(stored):
            assert time.monotonic() < deadline, (counted, len(stored), self._sessions(database))
            time.sleep(0.1)

    def _sessions(self, database: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
        """Return what each session says of its events, for who reads a failure."""
        return database.execute(
            "SELECT s.external_id, s.last_seq, s.evaluated_seq, s.call_count, s.pending_since, now(),"
            " (SELECT count(*) FROM detection_event e WHERE (e.project_id, e.session_id) = (s.project_id, s.id)"
            " AND e.type = 'call') FROM detection_session s WHERE s.external_id LIKE 'agent-%' ORDER BY 1"
        ).fetchall()

    def _counted(self, database: psycopg.Connection[Any]) -> int:
        row = database.execute(
            "SELECT sum(call_count) FROM detection_session WHERE external_id LIKE 'agent-%'"
        ).fetchone()
        database.rollback()
        return int(row[0] or 0) if row else 0
