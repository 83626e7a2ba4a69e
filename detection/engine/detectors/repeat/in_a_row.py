"""`a a a a`: the fourth identical call in a row, where `repeat_scope` is `consecutive`."""

from __future__ import annotations

from math import ceil

from detection.engine.bounded import hash_of
from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import Reading, detail
from detection.engine.detectors.repeat import changing
from detection.engine.detectors.repeat.finding import finding_about
from detection.engine.detectors.repeat.first_warning import first_advice, first_warning
from detection.engine.detectors.repeat.state import RepeatState, Streak
from detection.engine.dispatching import inner
from detection.engine.identity import structured
from detection.engine.memory import EMPTY, ERROR, OK, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome
from detection.engine.tool_verbs import moves_on, what_was_made
from detection.engine.writes import COUNTED, counts_by_receipt

# By definition the first call that repeats another one.
_SECOND = 2
# Times beyond the limit where each call ages by itself: more than any ladder has rungs, in a KiB or so; a judgement.
_MAX_TIMES_BEYOND_LIMIT = 64
# A ladder that continues beyond the limit sees whether the streak continues.
_MAX_TIMES = 128
# Waits between retries mostly double; less than half more is how long a model takes to answer. A judgement.
_LONGER = 1.5
# A call after a longer pause than before, where the provider has trouble; as `_SLOW_WEIGHT` of `fold`.
_BACKS_OFF = 0.2
# Sums of fifths are not exact.
_ENOUGH = 1 - 1e-9
# For the same reason, before a count is cut to a whole number.
_ROUNDING = 1e-9


def judge(
    own: RepeatState, run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
) -> Reading:
    """Add a call to its streak, or begin one, and judge it."""
    values, streak = policy.values, own.streak
    if streak is None or streak.key != record.key:
        # Most calls begin a streak, and end there.
        own.streak = _begun(record, policy)
        return Reading(1, values["max_repeats"])
    if streak.spoken and not policy.reads_plainly:
        # What the user may have asked for again is no repeat.
        own.streak = _begun(record, policy)
        own.streak.turns, own.streak.before = streak.turns + 1, streak.result
        return _judge_turns(own.streak, run, record, policy)
    own.streak = streak = _aged(streak, record, policy)
    weight = _weight(streak, record, policy)
    streak.at = record.at
    streak.calls += 1
    streak.series += 1
    streak.count += weight
    streak.paced += weight
    streak.spoken = False
    if streak.asked is not None:
        streak.asked += 1
    if streak.first < 0:
        streak.first, streak.since = record.seq, record.at
    if values["ttl_from"] == "entry" or _period(record, policy):
        streak.times = [*(streak.times or ()), record.at]
    if streak.calls == 1:
        return Reading(1, values["max_repeats"])
    if streak.calls == _SECOND and values["result_aware"]:
        streak.moves_on = moves_on(record.tool, structured(call.arguments))
    return _judge(streak, run, record, policy)


def _weight(streak: Streak, record: Record, policy: PolicySettings) -> float:
    """Return how much a call counts. A pause after trouble of the provider is what such an error asks for."""
    if not streak.calls or streak.status != ERROR:
        return record.weight if streak.calls else 1.0
    if not streak.is_trouble:
        return 1.0
    pause, before = record.at - streak.at, streak.at - streak.since
    backs_off = streak.calls > 1 and pause >= max(1.0, _LONGER * before / (streak.calls - 1))
    return _BACKS_OFF if backs_off and not policy.reads_plainly else record.weight


def _begun(record: Record, policy: PolicySettings) -> Streak:
    streak = Streak(record.key, record.ordinal - 1, 1, 1, 1.0, 1.0, record.seq, record.at, record.at)
    if policy.values["ttl_from"] == "entry" or (record.effect in COUNTED and _period(record, policy)):
        streak.times = [record.at]
    return streak


def _judge_turns(streak: Streak, run: RunState, record: Record, policy: PolicySettings) -> Reading:
    """Advise once if a person has got the same result in several turns."""
    warn_at = first_advice(policy.values) + run.allowances.get(record.key, 0)
    if streak.turns != warn_at or policy.traits.tool_class == "poll":
        return Reading(1, policy.values["max_repeats"])
    finding = finding_about_streak(
        streak, run, record, policy, warn_at, warn_at, policy.values["max_repeats"], "equal", advisory=True
    )
    return Reading(warn_at, policy.values["max_repeats"], finding)


def _aged(streak: Streak, record: Record, policy: PolicySettings) -> Streak:
    """Return the streak without calls that are too old at this one; a new streak if none is left."""
    values = policy.values
    ttl, ttl_from = values["ttl_seconds"], values["ttl_from"]
    if period := _period(record, policy):
        return _within(streak, record, period)
    if ttl_from == "entry":
        # Each call ages by itself; one exactly as old as the time to live still counts. Times are kept beyond the
        # limit, so that a ladder sees whether the streak continues.
        kept = values["max_repeats"] + _MAX_TIMES_BEYOND_LIMIT
        times = [at for at in streak.times or () if record.at - at <= ttl][-kept:]
        if not times:
            return Streak(record.key, record.ordinal - 1)
        streak.calls = streak.series = len(times)
        streak.count = float(len(times))
        streak.times = times
    elif ttl_from == "previous" and streak.calls and record.at - streak.at > ttl:
        return Streak(record.key, record.ordinal - 1)
    return streak


def _period(record: Record, policy: PolicySettings) -> int:
    """Return the seconds in which identical writes count whatever the pauses; 0 for other calls."""
    if policy.values["ttl_from"] != "previous" or not counts_by_receipt(record.effect, policy):
        return 0
    return int(policy.values["write_period_minutes"]) * 60


def _within(streak: Streak, record: Record, period: int) -> Streak:
    """Return the streak of a write without what is older than the period; a new streak if nothing is left."""
    times = [at for at in streak.times or () if record.at - at < period][-_MAX_TIMES:]
    if not times:
        return Streak(record.key, record.ordinal - 1)
    kept = len(times)
    streak.times, streak.calls = times, kept
    streak.series, streak.known = min(streak.series, kept), min(streak.known, kept)
    streak.made = min(streak.made, kept)
    streak.count, streak.paced = min(streak.count, float(kept)), min(streak.paced, float(kept))
    return streak


def _judge(streak: Streak, run: RunState, record: Record, policy: PolicySettings) -> Reading:
    values = policy.values
    calls, allowance = streak.calls, run.allowances.get(record.key, 0)
    if not values["result_aware"]:
        limit = values["max_repeats"] + allowance
        if calls < limit:
            return Reading(calls, limit)
        finding = finding_about_streak(streak, run, record, policy, calls, calls, limit, "unknown")
        return Reading(calls, limit, finding)
    is_poll = policy.traits.tool_class == "poll"
    if is_poll and streak.status == ERROR and not streak.is_trouble and not policy.reads_plainly:
        is_poll = False  # What does not exist is not waited for.
    limit = (values["poll_max_repeats"] if is_poll else values["max_repeats"]) + allowance
    warn_at = (values["poll_warn_at"] if is_poll else first_warning(values)) + allowance
    changing_limit = values["max_repeats_changing"] + allowance
    counted = int(streak.count + _ROUNDING)
    results = _results_of(streak)
    found: Finding | None = None
    if streak.count >= limit * _ENOUGH:
        series = streak.series if streak.changes else calls
        count = max(counted if streak.changes else calls, limit)
        # Settings that compare literally still only warn about it.
        asked = streak.asked is not None and streak.asked < limit
        found = finding_about_streak(
            streak, run, record, policy, count, series, limit, results, advisory=asked
        )
    elif (
        warn_at > allowance
        and streak.count >= warn_at * _ENOUGH
        and streak.known >= min(warn_at, limit) - 1 - allowance
    ):
        found = finding_about_streak(
            streak, run, record, policy, counted, streak.series, limit, results, advisory=True
        )
    elif changing.is_found(streak, changing_limit * _ENOUGH, record.effect, policy):
        found = finding_about_streak(
            streak, run, record, policy, calls, calls, changing_limit, "changing", advisory=True
        )
    return Reading(counted, limit, found)


def note_result(
    streak: Streak, run: RunState, record: Record, outcome: ResultOutcome, policy: PolicySettings
) -> None:
    """Note a result of the streak; a changed one starts a new series."""
    last = streak.result
    if streak.before and record.result != streak.before:
        streak.turns = 1
    if last and record.result != last and not (record.status == ERROR and streak.status == ERROR):
        # Calls still in flight belong to the new series.
        in_flight = sum(
            1 for other in run.records if other.ordinal > record.ordinal and other.key == record.key
        )
        streak.series = 1 + in_flight
        streak.count = 1.0 + in_flight
        streak.known = streak.made = 0
        streak.changes += record.status in (OK, EMPTY)
    streak.known += 1
    streak.result, streak.status = record.result, record.status
    if record.status == ERROR:
        streak.is_trouble = bool(outcome.trouble)
    elif outcome.is_receipt and counts_by_receipt(record.effect, policy):
        receipt = hash_of(outcome.raw)
        # To send the same once more sends another one; to write the same once more may change nothing.
        streak.made += receipt != streak.receipt or record.effect == "message"
        streak.receipt, streak.made_id = receipt, outcome.given_id


def _results_of(streak: Streak) -> str:
    """Describe the known results since the last change."""
    if not streak.known:
        return "unknown"
    return {ERROR: "errors", EMPTY: "empty"}.get(streak.status, "equal")


def finding_about_streak(
    streak: Streak,
    run: RunState,
    record: Record,
    policy: PolicySettings,
    count: int,
    calls: int,
    limit: int,
    results: str,
    *,
    advisory: bool = False,
) -> Finding:
    """Return a finding about the last `calls` calls of a streak; `count` is less where slow calls count as a fifth."""
    seconds = None
    if policy.values["ttl_from"] == "entry":
        seconds = policy.values["ttl_seconds"]
    elif policy.values["ttl_from"] == "previous":
        # The time to live limits the pause between two calls; what they span together can be any time.
        seconds = max(1, ceil(record.at - _start(streak, run, record, calls)))
    so_far = _so_far(streak, record) if results == "equal" else ""
    details = detail(
        record.tool,
        advisory=advisory,
        scope="consecutive",
        calls=calls if calls != count else 0,
        so_far=so_far,
    )
    return finding_about(
        run, record, policy, count, limit, results, details, window_seconds=seconds, first_seq=streak.first
    )


def _so_far(streak: Streak, record: Record) -> str:
    """Return what the calls of a streak that sends or changes something have done; empty for other calls."""
    if not streak.receipt:
        return ""
    made = what_was_made(inner(record.tool), streak.known) if streak.made == streak.known else ""
    said = made or ("it succeeded once" if streak.known == 1 else f"it succeeded {streak.known} times")
    if not streak.made_id:
        return f"so far, {said}"
    return (
        f"so far, {said}; the last is {streak.made_id}"
        if made
        else f"so far, {said}, the last time as {streak.made_id}"
    )


def _start(streak: Streak, run: RunState, record: Record, calls: int) -> float:
    """Return the time of the first of the last `calls` calls; that of the whole streak where it is not remembered."""
    for other in reversed(run.records):
        if other.key == record.key:
            calls -= 1
            if not calls:
                return other.at
    return streak.since
