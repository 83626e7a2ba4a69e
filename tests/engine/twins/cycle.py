"""Twin of `cycle`."""

from __future__ import annotations

from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import History, Past


def cycle(run: History, policy: Policy) -> Expected | None:
    """Try every lap length, shortest first, on the whole history."""
    if run.current is None or run.is_after_result:
        return None
    for length in range(policy.get("cycle_min_length"), policy.get("cycle_max_length") + 1):
        laps = _laps(run.past, length)
        if laps < 2 or len({one.key for one in run.past[-length:]}) == 1:
            continue
        results = (
            _answers(run.past[-policy.memory_calls :], length, laps)
            if policy.get("result_aware")
            else "unknown"
        )
        limit = policy.get("cycle_min_laps")
        if policy.get("result_aware") and results == "unknown":
            limit = policy.get("cycle_unknown_laps")
        if results == "changing":
            limit = policy.get("max_repeats_changing")
        if policy.get("result_aware") and any(one.kind_of_tool == "poll" for one in run.past[-length:]):
            limit = max(limit, policy.get("poll_warn_at"))
        if laps >= limit:
            return Expected("cycle", laps, limit, results, length, advisory=results == "changing")
    return None


def _laps(past: list[Past], length: int) -> int:
    equal = 0
    for later in range(len(past) - 1, length - 1, -1):
        one, earlier = past[later], past[later - length]
        if one.key != earlier.key or not earlier.live(one.place):
            break
        equal += 1
    return equal // length + 1


def _answers(past: list[Past], length: int, laps: int) -> str:
    """Compare each call of the counted laps that has a result, except the current one, with the call one lap earlier."""
    # Only so many calls are remembered, and only whole laps are compared.
    laps = min(laps, len(past) // length)
    pairs = [
        (past[place], past[place - length])
        for place in range(len(past) - length * (laps - 1), len(past) - 1)
        if past[place].status != "pending" and past[place - length].status != "pending"
    ]
    if not pairs:
        return "unknown"
    if any(one.answer != earlier.answer and one.status != "error" for one, earlier in pairs):
        return "changing"
    return "errors" if all(one.status == "error" for one, _ in pairs) else "equal"
