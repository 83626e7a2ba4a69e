"""`a b a c a`: the third identical call among the last ones, where `repeat_scope` is `window`."""

from __future__ import annotations

from detection.engine.detectors.base import Reading, detail
from detection.engine.detectors.repeat.finding import finding_about, known_results
from detection.engine.memory import Record, RunState
from detection.engine.policy_settings import PolicySettings


def judge(run: RunState, record: Record, policy: PolicySettings) -> Reading:
    """Judge a call by the identical ones among the `window_calls` calls before it."""
    values = policy.values
    ttl = values["ttl_seconds"] if values["ttl_from"] != "never" else None
    earlier = run.records[-1 - values["window_calls"] : -1]
    count = 1 + sum(
        1
        for other in earlier
        if other.key == record.key and not other.is_obsolete and (ttl is None or record.at - other.at <= ttl)
    )
    limit = values["max_repeats"] + run.allowances.get(record.key, 0)
    if count < limit:
        return Reading(count, limit)
    finding = finding_about(
        run, record, policy, count, limit, known_results(run, record), detail(record.tool, scope="window"),
        window_calls=values["window_calls"], window_seconds=ttl,
    )  # fmt: skip
    return Reading(count, limit, finding)
