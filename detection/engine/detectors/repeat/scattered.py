"""The same call with the same result, other calls in between. This is advised against and never blocked.

Calls in a row have their own limit, which decides as long as it is the higher one.

Among the last calls, only those since the last change count. Over the whole run, the limit is one higher and changes do
not matter, because they did not change the result. An agent that makes two calls again, and each fails again in its own
way, has lost its way as well: together they need one more than one call alone. On recorded runs this finds three loops
a step earlier and no healthy run.
"""

from __future__ import annotations

from detection.engine.detectors.base import QUIET, Reading, detail, is_within_repeats
from detection.engine.detectors.repeat.finding import finding_about
from detection.engine.detectors.repeat.state import RepeatState, count
from detection.engine.memory import ERROR, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome

# As many calls as a run remembers at most; a judgement for the size of the state, not measured.
_MAX_PAIRS = 64
# Hexadecimal digits kept of the digests of a call and of its result: 48 bits for both tell 64 apart.
_DIGEST_CHARACTERS = 6


def judge(
    own: RepeatState, run: RunState, record: Record, outcome: ResultOutcome, policy: PolicySettings
) -> Reading:
    """Judge a call by its result."""
    values = policy.values
    # An agent may write its list of tasks as often as it works.
    if policy.traits.tool_class == "poll" or record.effect == "note" or record.weight < 1.0:
        return QUIET
    if policy.traits.steps and record.status != ERROR and not policy.reads_plainly:
        return QUIET  # Back from each of many pages is the same list.
    in_run = 0
    reads = policy.traits.reads or record.effect in ("look", "search")
    if outcome.is_evidence and (record.status == ERROR or not reads):
        in_run = count(own.pairs, _pair_of(record), _MAX_PAIRS)
    if record.is_new:
        return QUIET
    window = values["scattered_window_calls"]
    key, result = record.key, record.result
    recent = 0
    for other in run.records[-window:]:
        if other.key == key and other.result == result and not other.is_obsolete:
            recent += 1
    allowance = run.allowances.get(key, 0)
    in_a_row = own.streak.calls if own.streak is not None and own.streak.key == key else 0
    results = "errors" if record.status == ERROR else "equal"
    for found, setting, window_calls in (
        (recent, "scattered_repeats", window),
        (in_run, "scattered_run_repeats", None),
    ):
        limit = values[setting]
        if limit and window_calls is None and record.status == ERROR:
            limit -= 1
            if 1 < found < limit + allowance < found + _most_beside(own, run, record):
                limit = found - allowance
        if in_a_row >= found and is_within_repeats(found, key, run, policy, setting):
            continue
        if limit and found >= limit + allowance:
            limit += allowance
            details = detail(record.tool, advisory=True, scope="scattered")
            finding = finding_about(
                run, record, policy, found, limit, results, details, window_calls=window_calls
            )
            return Reading(found, limit, finding)
    return QUIET


def _pair_of(record: Record) -> str:
    return record.key[:_DIGEST_CHARACTERS] + record.result[:_DIGEST_CHARACTERS]


def _most_beside(own: RepeatState, run: RunState, record: Record) -> int:
    """Return how often another call has failed with one error, of those that have done so more than once."""
    counts = (
        own.pairs.get(_pair_of(other), 0)
        for other in run.records
        if other.status == ERROR and other.key != record.key
    )
    return max((one for one in counts if one > 1), default=0)
