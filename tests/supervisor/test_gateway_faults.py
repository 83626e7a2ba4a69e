"""Agents of a whole installation, most behind its gateway, while its database hangs or dies, and other parts die or end."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest

from loopguard_site.supervisor import children
from tests.gateway.agents import Agent
from tests.support.model_answers import answered, call
from tests.support.model_server import ModelServer
from tests.support.plain_http import PLAIN

from .installed import Installed
from .running import ROOT, Run, descendants

TURNS = 6
REQUEST_SECONDS = 4
"""Less than what the gateway waits for an evaluation: a request that waited for the database each time would fail here."""
SETUP = """
from detection.models import Project
from detection.services.audit import SYSTEM
from detection.services.gateway import backends
from detection.services.keys import create_key
project = Project.objects.create(slug="guarded", name="Guarded")
for name, kind, path in (("openai", "openai", "/v1"), ("anthropic", "anthropic", ""), ("closed", "openai", "/v1")):
    backends.create_backend(project.pk, SYSTEM, name=name, kind=kind, base_url="{url}" + path, fails_closed=name == "closed")
print(create_key(project, "agents", SYSTEM)[1])
"""
COUNT = "SELECT call_count FROM detection_session WHERE external_id = %s"


@dataclass
class World:
    """An installation with backends before a scripted model server."""

    run: Run
    model: ModelServer
    url: str
    pages: str
    key: str = ""
    backend: str = ""
    patience: float = 30

    def http(self, name: str, **headers: str) -> httpx.Client:
        base = f"{self.url}/gateway/{self.backend or name}"
        headers = {"LoopGuard-Key": self.key, "Authorization": "Bearer sk-client", **headers}
        return httpx.Client(base_url=base, headers=headers, timeout=self.patience, verify=PLAIN)

    def shell(self, text: str) -> str:
        """Run Python text as an operator of the installation."""
        environment = {**self.run.environment, "LOOPGUARD_DATA": str(self.run.data)}
        command = [sys.executable, "manage.py", "shell", "-v", "0", "-c", text]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def processes(self, *words: str) -> list[int]:
        """The processes of the installation whose command lines contain all words."""
        found = []
        for pid in {one for root in self.run.pids() for one in descendants(root)}:
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                if all(word in line for word in words):
                    found.append(pid)
        return found


@pytest.fixture(scope="module")
def world(installed: Installed) -> World:
    world = World(installed.run, installed.model, installed.live_url, installed.url)
    world.key = world.shell(SETUP.format(url=world.model.url)).splitlines()[-1]
    return world


@contextlib.contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    assert pids
    for pid in pids:
        children.send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            children.send(pid, signal.SIGCONT)


def kill(pids: list[int]) -> None:
    assert pids
    for pid in pids:
        children.send(pid, signal.SIGKILL)


class Interrupted(list):
    """Parts of a stream with a fault before the last three: after the first text, before the calls are complete."""

    def __init__(self, parts: Sequence[bytes | float], fault: Callable[[], None]) -> None:
        super().__init__(parts)
        self._fault = fault

    def __iter__(self):
        for number, part in enumerate(list.__iter__(self)):
            if number == len(self) - 3:
                self._fault()
            yield part


def script_with_fault(world: World, shape: str, turn: int, fault: Callable[[], None]):
    """Every turn calls a tool; in one, the fault comes in mid-stream."""
    first = len(world.model.asked)

    def script(asked):
        number = len(world.model.asked) - first
        answer = answered(asked, shape, "Let me see.", [call("read", path=f"{number}.txt")])
        if number == turn:
            answer.parts = Interrupted(answer.parts, fault)
        return answer

    return script


def finish_run(world: World, agent: Agent) -> None:
    """Every turn gives the agent its calls."""
    for _ in range(TURNS - agent.runs):
        assert len(agent.turn(lambda one: f"text of {one[2]['path']}").calls) == 1


def wait_until_every_call_counts(world: World, agent: Agent) -> None:
    """The history that is sent again contains what nobody evaluated."""
    deadline = time.monotonic() + 60
    while True:
        assert agent.turn(lambda one: f"text of {one[2]['path']}").calls
        with psycopg.connect(world.run.servers()["DATABASE_URL"], connect_timeout=5) as database:
            (count,) = database.execute(COUNT, [agent.session]).fetchone() or (0,)
        if count == agent.runs:
            return
        assert time.monotonic() < deadline, (count, agent.runs)
        time.sleep(0.5)


@pytest.mark.parametrize("shape", ["openai", "anthropic", "responses"])
def test_a_database_that_hangs_in_mid_stream_ends_no_run(world: World, shape):
    agent = Agent(world, shape, is_stream=True, session=f"frozen-{shape}")
    with contextlib.ExitStack() as stack:
        world.model.script = script_with_fault(
            world, shape, 2, lambda: stack.enter_context(frozen(world.processes("postgres")))
        )
        for _ in range(3):
            assert agent.turn(lambda one: f"text of {one[2]['path']}").calls
        world.patience = REQUEST_SECONDS
        finish_run(world, agent)
        world.patience = 30
    wait_until_every_call_counts(world, agent)


def test_a_database_that_hangs_withholds_calls_where_the_backend_fails_closed(world: World):
    world.backend = "closed"
    try:
        agent = Agent(world, "openai", is_stream=True, session="closed")
        with contextlib.ExitStack() as stack:
            world.model.script = script_with_fault(
                world, "openai", 2, lambda: stack.enter_context(frozen(world.processes("postgres")))
            )
            assert agent.turn().calls
            for _ in range(3):
                given = agent.turn()
                assert (given.calls, given.finish) == ([], "stop")
                assert "could not evaluate the tool calls" in given.text
                agent.say("go on")
        deadline = time.monotonic() + 60
        while not agent.turn().calls:
            assert time.monotonic() < deadline
            agent.say("go on")
    finally:
        world.backend = ""


@pytest.mark.parametrize("victim", ["database", "broker", "worker"])
def test_a_kill_in_mid_stream_ends_no_run(world: World, victim):
    words = {"database": ("postgres",), "broker": ("valkey",), "worker": ("celery", "worker")}[victim]
    world.model.script = script_with_fault(world, "openai", 2, lambda: kill(world.processes(*words)))
    agent = Agent(world, "openai", is_stream=True, session=f"killed-{victim}")
    finish_run(world, agent)
    deadline = time.monotonic() + 60
    while not world.processes(*words):
        assert time.monotonic() < deadline, world.run.log.read_text()
        time.sleep(0.2)
    while httpx.get(f"{world.pages}/readyz", timeout=10, verify=PLAIN).status_code != 200:
        assert time.monotonic() < deadline, world.run.log.read_text()
        time.sleep(0.2)
    wait_until_every_call_counts(world, agent)


def main_process(world: World, *words: str) -> int:
    """The process that the supervisor has started, and to which an operator or a container runtime sends signals."""
    (found,) = set(world.processes(*words)) & set(world.run.pids())
    return found


def wait_until(world: World, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, world.run.log.read_text()
        time.sleep(0.1)


def says(world: World, line: str) -> bool:
    return line in world.run.log.read_text()


def refuses(url: str) -> bool:
    try:
        httpx.get(f"{url}/healthz", timeout=5, verify=PLAIN)
    except httpx.TransportError:
        return True
    return False


@pytest.mark.promise("REL-06")
def test_a_sigterm_lets_web_worker_and_gateway_finish_what_they_are_at_and_begin_nothing(world: World):
    def post(path: str, document: dict[str, object]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {world.key}"}
        return httpx.post(
            f"{world.pages}/api/v1/{path}", json=document, headers=headers, timeout=20, verify=PLAIN
        )

    assert post("guard", {"session": "ended", "calls": [{"tool": "t"}]}).status_code == 200
    event = {"type": "call", "session": "evaluated", "tool": "t", "arguments": {}}
    web, live = main_process(world, "granian"), main_process(world, "\0loopguard_site\0live\0")
    worker = main_process(world, "celery", "--without-gossip")
    with ThreadPoolExecutor() as agents, psycopg.connect(world.run.servers()["DATABASE_URL"]) as database:
        # Requests of operators and evaluations wait for this table; events are accepted without it.
        database.execute("LOCK TABLE detection_trackerstate IN ACCESS EXCLUSIVE MODE")
        stopped = agents.submit(post, "sessions/ended/stop", {"reason": "enough"})
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_until(world, lambda: database.execute(waiting).fetchone() >= (1,))
        assert post("events", {"events": [event] * 6}).status_code == 202
        wait_until(world, lambda: database.execute(waiting).fetchone() >= (2,))
        for pid in (web, worker):
            children.send(pid, signal.SIGTERM)
        wait_until(world, lambda: refuses(world.pages))
        assert not stopped.done()
        database.rollback()
        assert stopped.result().status_code == 200

    def end_live() -> None:
        children.send(live, signal.SIGTERM)
        wait_until(world, lambda: refuses(world.url))

    world.model.script = script_with_fault(world, "openai", 1, end_live)
    agent = Agent(world, "openai", is_stream=True, session="streamed")
    assert len(agent.turn().calls) == 1
    # uvicorn repeats the signal to itself once it is done. The supervisor notes an end a moment after it.
    for line in ("web ended (status 0)", "worker ended (status 0)", "live ended (SIGTERM)"):
        wait_until(world, partial(says, world, line))
    wait_until(world, lambda: not refuses(world.url) and not refuses(world.pages))
    wait_until(
        world, lambda: bool(world.processes("celery", "--without-gossip"))
    )  # the next test may kill it
    wait_until_every_call_counts(world, agent)
    with psycopg.connect(world.run.servers()["DATABASE_URL"]) as database:
        assert database.execute(COUNT, ["evaluated"]).fetchone() == (6,)
