"""`a … a … a`: the n-th identical call of the whole run, where `repeat_scope` is `run`."""

from __future__ import annotations

from detection.engine.detectors.base import Reading, detail
from detection.engine.detectors.repeat.finding import finding_about, known_results
from detection.engine.detectors.repeat.state import RepeatState, count
from detection.engine.memory import MAX_TOTALS, Record, RunState
from detection.engine.policy_settings import PolicySettings


def judge(own: RepeatState, run: RunState, record: Record, policy: PolicySettings) -> Reading:
    """Count a call, and judge it by all identical ones of the run."""
    calls = count(own.totals, record.key, MAX_TOTALS)
    limit = policy.values["max_repeats"] + run.allowances.get(record.key, 0)
    if calls < limit:
        return Reading(calls, limit)
    results, details = known_results(run, record), detail(record.tool, scope="run")
    return Reading(calls, limit, finding_about(run, record, policy, calls, limit, results, details))
