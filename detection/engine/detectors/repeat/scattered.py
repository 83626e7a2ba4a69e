"""The same call with the same result, other calls in between. This is advised against and never blocked.

Among the last calls, only those since the last change count. Over the whole run, the limit is one higher and changes do
not matter, because they did not change the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detection.engine.detectors.base import QUIET, Reading, detail
from detection.engine.detectors.repeat.finding import finding_about
from detection.engine.detectors.repeat.state import RepeatState, count
from detection.engine.memory import ERROR, Record, RunState
from detection.engine.results import ResultOutcome

if TYPE_CHECKING:
    from detection.engine.policy import Policy

_MAX_PAIRS = 64


def judge(own: RepeatState, run: RunState, record: Record, outcome: ResultOutcome, policy: Policy) -> Reading:
    """Judge a call by its result."""
    values = policy.values
    # An agent may write its list of tasks as often as it works.
    if policy.traits.tool_class == "poll" or record.effect == "note" or record.weight < 1.0:
        return QUIET
    in_run = 0
    reads = policy.traits.reads or record.effect in ("look", "search")
    if outcome.is_evidence and (record.status == ERROR or not reads):
        in_run = count(own.pairs, record.key[:6] + record.result[:6], _MAX_PAIRS)
    if record.is_new:
        return QUIET
    window = values["scattered_window_calls"]
    key, result = record.key, record.result
    recent = 0
    for other in run.records[-window:]:
        if other.key == key and other.result == result and not other.is_obsolete:
            recent += 1
    allowance = run.allowance(key)
    results = "errors" if record.status == ERROR else "equal"
    for found, limit, window_calls in (
        (recent, values["scattered_repeats"], window),
        (in_run, values["scattered_run_repeats"], None),
    ):
        if limit and window_calls is None and record.status == ERROR:
            limit -= 1
        if limit and found >= limit + allowance:
            limit += allowance
            details = detail(record.tool, advisory=True, scope="scattered")
            finding = finding_about(
                run, record, policy, found, limit, results, details, window_calls=window_calls
            )
            return Reading(found, limit, finding)
    return QUIET
