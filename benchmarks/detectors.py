"""What each detector costs, alone and with the others, at any length of a session, beside a bare loop.

The bare loop does what nobody can do without: canonical JSON of the arguments and one keyed digest per call. It runs
beside them, on the same calls, so that a ratio holds on any machine. Times are of the processor, not of the clock: what
else the machine does is left out as far as can be. The promises for the engine as a whole belong to `engine`.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import statistics
from collections.abc import Iterator
from itertools import islice
from time import thread_time as _now
from typing import Any

import orjson

from benchmarks.engine import _session as believable_calls
from benchmarks.report import Figure
from detection.engine import fold, snapshot
from detection.engine.calls import Call, Result
from detection.engine.detectors import DETECTORS
from detection.engine.identity import Keyer
from detection.engine.memory import State
from detection.engine.policy import SESSION, Policy, resolve

LENGTHS = (100, 1_000, 10_000, 100_000)
WINDOW_CALLS = 400
ROUNDS = 50

Step = tuple[Call, Result]


def run() -> Iterator[Figure]:
    """Measure; about a minute, no server."""
    policies = {"all": resolve([(SESSION, _UNSPENT)])} | {one.kind: _alone(one.switch) for one in DETECTORS}
    steps = list(islice(_steps(), LENGTHS[-1] + WINDOW_CALLS))
    bare = _bare(steps[:WINDOW_CALLS])
    yield Figure("bare: canonical JSON and one HMAC a call", bare * 1e6, "µs")
    early: dict[str, float] = {}
    for name, policy in policies.items():
        states = _states(steps, policy)
        for length, data in states.items():
            asking, telling = _at(data, steps[length : length + WINDOW_CALLS], policy)
            early.setdefault(name, asking)
            promised = (60, 25) if name == "all" else (None, None)
            yield Figure(f"{name}, a call, {length:,} calls in the session", asking * 1e6, "µs", *promised)
            yield Figure(f"{name}, its result, {length:,} calls in the session", telling * 1e6, "µs")
            if name == "all" and length == 10_000:
                yield Figure("all, a call, 10,000 against 100", asking / early[name], "x", 1.2, 1.0)
        yield Figure(f"{name}, a call against bare", early[name] / bare, "x")
        if name == "all":
            for length, data in states.items():
                yield Figure(f"state, {length:,} calls in the session", len(data) / 1024, "KiB", 32, 8)
            yield from _snapshots(states[LENGTHS[-1]])


# Out of reach: a spent budget would refuse every later call, and refused calls cost less.
_UNSPENT = {"budget_max_calls": 10_000_000, "budget_max_rounds": 1_000_000}


def _alone(switch: str) -> Policy:
    return resolve([(SESSION, {one.switch: one.switch == switch for one in DETECTORS} | _UNSPENT)])


def _steps() -> Iterator[Step]:
    at = 1_800_000_000.0
    for number, (tool, arguments, content, is_error) in enumerate(believable_calls(random.Random(7)), 1):
        at += 2.0
        call = Call(2 * number, tool, arguments, at, f"c{number}", f"r{number}")
        yield call, Result(call.call_id, content, is_error, at + 1, 2 * number + 1)


def _states(steps: list[Step], policy: Policy) -> dict[int, bytes]:
    """Snapshots at the lengths that are measured, from one pass."""
    state, keyer, kept = fold.new_state(), Keyer(b"benchmark"), {}
    for number, step in enumerate(steps[: LENGTHS[-1]], 1):
        _fold(state, step, policy, keyer)
        if number in LENGTHS:
            kept[number] = snapshot.dump(state)
    return kept


def _at(data: bytes, steps: list[Step], policy: Policy) -> tuple[float, float]:
    """Median seconds of a call and of a result, the best of three passes from the same state."""
    keyer, best = Keyer(b"benchmark"), (float("inf"), float("inf"))
    for _ in range(3):
        state = snapshot.load(data)
        asking, telling = [], []
        for call, result in steps:
            start = _now()
            fold.observe_call(state, call, policy, keyer)
            between = _now()
            fold.observe_result(state, result, policy, keyer)
            asking.append(between - start)
            telling.append(_now() - between)
        best = (min(best[0], statistics.median(asking)), min(best[1], statistics.median(telling)))
    return best


def _fold(state: State, step: Step, policy: Policy, keyer: Keyer) -> None:
    fold.observe_call(state, step[0], policy, keyer)
    fold.observe_result(state, step[1], policy, keyer)


def _bare(steps: list[Step]) -> float:
    taken = []
    for _ in range(3):
        for call, _result in steps:
            before = _now()
            text = orjson.dumps(call.arguments, option=orjson.OPT_SORT_KEYS)
            hmac.new(b"benchmark", call.tool.encode() + text, hashlib.sha256).hexdigest()
            taken.append(_now() - before)
    return statistics.median(taken)


def _snapshots(data: bytes) -> Iterator[Figure]:
    state = snapshot.load(data)
    for name, work in (("load", lambda: snapshot.load(data)), ("dump", lambda: snapshot.dump(state))):
        yield Figure(f"snapshot, {name}", _median(work) * 1e6, "µs")


def _median(work: Any) -> float:
    taken = []
    for _ in range(ROUNDS):
        before = _now()
        work()
        taken.append(_now() - before)
    return statistics.median(taken)
