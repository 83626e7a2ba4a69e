"""One seed: its runs under its faults, the time to recover from each strike, and the comparison with the reference."""

from __future__ import annotations

import math
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from development.chaos.agents import Load
from development.chaos.contained import ContainedAgent
from development.chaos.faults import Injector
from development.chaos.installation import Installation
from development.chaos.live_page import LivePage
from development.chaos.outcome import Comparison, Outcome, compare, read_outcome, waiting_sessions
from development.chaos.runs import runs
from development.chaos.schedule import Strike, schedule

RESTART = "kill supervisor"
LIMIT_SECONDS = 15.0
"""Promised in docs/operations.md: detection continues after every fault."""
RESTART_LIMIT_SECONDS = 60.0
"""Of the supervisor itself, which someone has to start again."""
LONGEST_RECOVERY_SECONDS = 90.0
MOST_LOAD = 4.0
"""For each processor. Where other work makes the load larger than this, a start takes as long as that work lets it."""
FINISH_SECONDS = 120.0
SETTLE_SECONDS = 20.0
PACE_SECONDS = 0.3
_LOOK_SECONDS = 0.1
_PROBE_CALLS = 4


@dataclass
class Recovery:
    """The time that one strike cost.

    Attributes
    ----------
    seconds
        From the end of the strike (of a kill: from the kill) until a new loop was reported, an incident found, the
        guard and the pages answered, and the open page had its socket; infinite if that took too long.
    parts
        The same for each of these.
    load
        Processes that wanted to run at the end, on average over a minute: other work on the machine delays a recovery.
    """

    kinds: list[str]
    seconds: float
    limit_seconds: float
    parts: dict[str, float]
    load: float

    @property
    def is_over(self) -> bool:
        """Whether it took longer than promised."""
        return self.seconds > self.limit_seconds

    @property
    def is_late(self) -> bool:
        """Whether it took longer than promised, on a machine that had time for it."""
        return self.is_over and (self.load <= MOST_LOAD * (os.cpu_count() or 1) or math.isinf(self.seconds))


@dataclass
class Trial:
    """What came of a seed."""

    seed: int
    strikes: list[Strike]
    comparison: Comparison = field(default_factory=Comparison)
    recoveries: list[Recovery] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    repeated: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    events: int = 0
    contained_calls: int = 0
    seconds: float = 0.0

    @property
    def is_working(self) -> bool:
        """Whether the installation works as before, so that another seed may follow."""
        return not self.problems and not any(math.isinf(one.seconds) for one in self.recoveries)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, duplicated, different or late."""
        return (
            self.comparison.is_clean and not self.problems and not any(one.is_late for one in self.recoveries)
        )


class Player:
    """Plays the runs of seeds on an installation.

    Parameters
    ----------
    keys
        Of the projects ``reference-N`` and ``chaos-N`` of each seed, and of ``probe``.
    """

    def __init__(self, installation: Installation, keys: dict[str, str]) -> None:
        self._installation, self._keys = installation, keys
        self._cookies = installation.sign_in()

    def reference(self, seed: int) -> Outcome:
        """Replay the runs of a seed without faults. Raises `RuntimeError` if that alone does not succeed."""
        name = f"reference-{seed}"
        load = self._load(name, seed, pace_seconds=0.0)
        load.start()
        load.finish(FINISH_SECONDS)
        if load.problems or load.answers.violations:
            raise RuntimeError(f"the reference of seed {seed}: {load.problems + load.answers.violations}")
        page = self._page(name)
        try:
            self._wait_until_evaluated(name)
            return self._outcome(name, load, page.read_anew())
        finally:
            page.stop()

    def trial(self, seed: int, reference: Outcome) -> Trial:
        """Play the runs of a seed under its faults and compare."""
        name, began = f"chaos-{seed}", time.monotonic()
        here = self._installation
        trial = Trial(seed, schedule(seed, with_disk=here.has_volume, with_clock=here.has_clock))
        load, page = self._load(name, seed, PACE_SECONDS), self._page(name)
        injector = Injector(here, random.Random(f"targets-{seed}"))
        contained = ContainedAgent(here.url, self._keys["probe"], f"contained-{seed}")
        page.start()
        load.start()
        contained.start()
        try:
            for number, strike in enumerate(trial.strikes):
                load.allow((number + 1) / len(trial.strikes))
                time.sleep(strike.pause_seconds)
                trial.missed += injector.strike(strike)
                trial.recoveries.append(self._recover(strike, f"{seed}-{number}", page))
            load.hurry()
            load.finish(FINISH_SECONDS)
            contained.finish()
            self._compare(trial, name, load, page, reference)
        finally:
            injector.undo()
            contained.stop()
            load.stop()
            page.stop()
        trial.problems += load.problems
        trial.comparison.different += contained.problems
        trial.contained_calls = contained.calls
        trial.repeated = dict(load.answers.repeated)
        trial.events = len(load.answers.acknowledged)
        trial.seconds = time.monotonic() - began
        return trial

    def _load(self, project: str, seed: int, pace_seconds: float) -> Load:
        return Load(self._installation.url, self._keys[project], runs(seed), pace_seconds)

    def _page(self, project: str) -> LivePage:
        return LivePage(self._installation.url, self._installation.live_url, project, self._cookies)

    def _recover(self, strike: Strike, name: str, page: LivePage) -> Recovery:
        """Wait until everything works again."""
        struck = time.monotonic()
        parts: dict[str, float] = {}
        probe = _Probe(self._installation.url, self._keys["probe"], name)
        checks = {"guard": probe.guard, "detection": probe.detects, "pages": lambda: bool(page.read_anew()) or True,
                  "live socket": lambda: page.answered_since(struck)}  # fmt: skip
        try:
            while len(parts) < len(checks) and time.monotonic() < struck + LONGEST_RECOVERY_SECONDS:
                for part, check in checks.items():
                    if part not in parts and _holds(check):
                        parts[part] = round(time.monotonic() - struck, 2)
                time.sleep(_LOOK_SECONDS)
        finally:
            probe.close()
        kinds = [fault.kind for fault in strike.faults]
        limit = RESTART_LIMIT_SECONDS if RESTART in kinds else LIMIT_SECONDS
        seconds = max(parts.values()) if len(parts) == len(checks) else float("inf")
        return Recovery(kinds, seconds, limit, parts, round(os.getloadavg()[0], 1))

    def _wait_until_evaluated(self, project: str) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        with self._installation.database() as database:
            while waiting := waiting_sessions(database, project):
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"{waiting} sessions of {project} were not evaluated within {SETTLE_SECONDS:g} s"
                    )
                time.sleep(_LOOK_SECONDS)

    def _compare(self, trial: Trial, name: str, load: Load, page: LivePage, reference: Outcome) -> None:
        try:
            self._wait_until_evaluated(name)
        except RuntimeError as error:
            trial.problems.append(str(error))
        deadline = time.monotonic() + SETTLE_SECONDS
        while page.shown() != page.read_anew() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        trial.comparison = compare(self._outcome(name, load, page.shown()), reference)
        trial.comparison.different += load.answers.violations

    def _outcome(self, name: str, load: Load, rows: dict[str, tuple[str, str]]) -> Outcome:
        with self._installation.database() as database:
            return read_outcome(database, self._installation.url, self._keys[name], name, load.answers, rows)


class _Probe:
    """A session of its own that loops, to see how long detection takes."""

    def __init__(self, url: str, key: str, name: str) -> None:
        self._client = httpx.Client(
            base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=2.5
        )
        self._session = f"probe-{name}"
        self._is_sent = False

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def guard(self) -> bool:
        """Return whether the guard gives a verdict."""
        call = {"call_id": "c1", "tool": "read_file", "arguments": {}}
        answer = self._client.post("/guard", json={"session": f"{self._session}-guard", "calls": [call]})
        return answer.status_code == 200

    def detects(self) -> bool:
        """Report a loop, once, and return whether its incident is there."""
        if not self._is_sent:
            answer = self._client.post(
                "/events", json={"events": [self._call(number) for number in range(_PROBE_CALLS)]}
            )
            self._is_sent = answer.status_code == 202
        return self._is_sent and bool(
            self._client.get("/incidents", params={"session": self._session}).json()["items"]
        )

    def _call(self, number: int) -> dict[str, Any]:
        common = {"id": f"{self._session}-{number}", "session": self._session, "call_id": f"c{number}"}
        return {**common, "type": "call", "tool": "search_web", "arguments": {"q": "again"}}


def _holds(check: Any) -> bool:
    try:
        return bool(check())
    except (httpx.HTTPError, ValueError, KeyError):
        return False
