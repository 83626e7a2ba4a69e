"""Cost of a call in the engine alone, early and late in a session, and size of its state."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator

from benchmarks.report import Figure
from detection.engine import fold, snapshot
from detection.engine.calls import Call, Result
from detection.engine.identity import Keyer
from detection.engine.policy import SESSION, Policy, resolve

WINDOW = 400
LENGTHS = (100, 1_000, 10_000)


def _session(rng: random.Random) -> Iterator[tuple[str, dict[str, object], str, bool]]:
    """Yield tool, arguments, result and failure of realistic calls; one in ten repeats an earlier one."""
    tools = ("read_file", "edit_file", "bash", "search_web", "get_job_status", "run_sql")
    earlier: list[tuple[str, dict[str, object], str, bool]] = []
    number = 0
    while True:
        number += 1
        if earlier and rng.random() < 0.1:
            yield rng.choice(earlier)
            continue
        tool = rng.choice(tools)
        arguments: dict[str, object] = {
            "path": f"src/part_{number}.py",
            "query": f"words {number} and more",
            "limit": 20,
        }
        lines = "\n".join(f"{number}: a line with the number {rng.randint(0, 9999)} in it" for _ in range(8))
        made = (tool, arguments, lines, rng.random() < 0.1)
        earlier = [*earlier[-30:], made]
        yield made


def run() -> list[Figure]:
    """Measure; takes a few seconds and no server."""
    # A spent budget would refuse all later calls, and refused calls cost less.
    values = {"preset": "standard", "budget_max_calls": 10_000_000, "budget_max_rounds": 1_000_000}
    policy, keyer = resolve([(SESSION, values)]), Keyer(b"benchmark")
    medians: dict[int, tuple[float, float]] = {}
    weights: dict[int, int] = {}
    for length in LENGTHS:
        call, whole, weights[length] = _at(length, policy, keyer)
        medians[length] = (call, whole)
    figures = []
    for length, (call, whole) in medians.items():
        figures.append(Figure(f"engine, verdict for a call, session of {length:,} calls", call * 1e6, "µs"))
        figures.append(
            Figure(f"engine, call and result, session of {length:,} calls", whole * 1e6, "µs", 60, 40)
        )
    growth = medians[10_000][1] / medians[100][1]
    figures.append(Figure("engine, cost at 10,000 calls against 100", growth, "x", 1.2, 1.0))
    figures += [
        Figure(f"state of a session of {length:,} calls", weight / 1024, "KiB", 32, 8)
        for length, weight in weights.items()
    ]
    return figures


def _at(length: int, policy: Policy, keyer: Keyer) -> tuple[float, float, int]:
    """Return the median seconds of a call, of a call with its result, and the snapshot's bytes around a length."""
    state, calls = fold.new_state(), _session(random.Random(length))
    verdicts, wholes = [], []
    at = 1_800_000_000.0
    for number in range(1, length + WINDOW + 1):
        tool, arguments, content, is_error = next(calls)
        at += 2.0
        call = Call(2 * number, tool, arguments, at, f"c{number}", f"r{number}")
        result = Result(f"c{number}", content, is_error, at + 1, 2 * number + 1)
        before = time.perf_counter()
        fold.observe_call(state, call, policy, keyer)
        judged = time.perf_counter()
        fold.observe_result(state, result, policy, keyer)
        done = time.perf_counter()
        if number > length:
            verdicts.append(judged - before)
            wholes.append(done - before)
    return statistics.median(verdicts), statistics.median(wholes), len(snapshot.dump(state))
