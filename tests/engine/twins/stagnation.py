"""Twin of `stagnation`."""

from __future__ import annotations

from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import History, Past


def stagnation(run: History, policy: Policy) -> Expected | None:
    """Count the results since the last new one."""
    current, limit = run.current, policy.get("stagnation_max_calls")
    if current is None:
        return None
    answers = run.answers()
    if not answers:
        return _by_keys(run, 2 * limit)
    idle = _idle(answers)
    if run.is_after_result:
        if current not in idle:
            return None
    elif current.key not in list(dict.fromkeys(one.key for one in idle))[-12:]:
        return None
    count = sum(_weight(one) for one in idle)
    if count + 1e-9 < limit:
        return None
    results = "errors" if current.status == "error" else "equal"
    return Expected("stagnation", int(count + 0.5), limit, results, min(12, len({one.key for one in idle})))


def _idle(answers: list[Past]) -> list[Past]:
    """Return the results since the last new one, without those that neither count nor reset."""
    idle: list[Past] = []
    for one in answers:
        if one.status == "error" or not one.new:
            idle.append(one)
        elif one.evidence or one.kind_of_tool == "change":
            idle = []
    return idle


def _weight(one: Past) -> float:
    if one.status != "error":
        return min(one.weight, 0.25) if one.kind_of_tool == "poll" else one.weight
    return 0.6 if one.new else 1.0


def _by_keys(run: History, limit: int) -> Expected | None:
    """Nobody answers: calls since the last one that was never made before."""
    idle: list[Past] = []
    keys = set()
    for one in run.past:
        if one.key in keys:
            idle.append(one)
        else:
            idle = []
            keys.add(one.key)
    count = sum(one.weight for one in idle)
    if not idle or count + 1e-9 < limit:
        return None
    return Expected("stagnation", int(count + 0.5), limit, "unknown", min(12, len({one.key for one in idle})))
