"""The same call again.

    a a a a        consecutive: the fourth in a row, younger than the time to live
    a b a c a      window: the third anywhere among the last calls
    a … a … a      run: the n-th in the whole run
    a=1 b a=1 c …  scattered: the same call with the same answer, a warning at most

The oldest and surest signal: equal calls in a row are almost never honest, unless the answer keeps changing. With
`result_aware` on, a changed answer starts the count again (a poll that moves, a cursor on the server), an error never
does, and calls that come slowly weigh a fifth. It errs where results never arrive and the tool is a poll nobody
declared. Cost: O(1) for `consecutive` and `run`, O(window) for `window`.
"""

from __future__ import annotations

from typing import Any

from detection.engine.calls import Finding
from detection.engine.detectors.base import QUIET, Detector, Reading, detail, evidence
from detection.engine.identity import loop_identity
from detection.engine.memory import EMPTY, ERROR, MAX_TOTALS, OK, Lane, Record, bounded
from detection.engine.policy import Policy
from detection.engine.results import Outcome

# What is noted about a streak besides its key and counts, and forgotten with it.
_OF_A_STREAK = ("at", "times", "known", "result", "status", "changes")
_MAX_PAIRS = 64
_MAX_TIMES_BEYOND = 64
_ENOUGH = 1 - 1e-9
_NEARLY = 1e-9


class Repeat(Detector):
    """Counts identical call keys."""

    kind = "repeat"
    switch = "repeat_enabled"

    def on_call(self, own: dict[str, Any], lane: Lane, record: Record, policy: Policy) -> Reading:
        """Judge a call before it runs."""
        scope = policy.values["repeat_scope"]
        if scope == "consecutive":
            return _consecutive(own, lane, record, policy)
        count = _in_window(lane, record, policy) if scope == "window" else _in_run(own, record)
        limit = policy.values["max_repeats"] + lane.allowance(record.key)
        if count < limit:
            return Reading(count, limit)
        return Reading(
            count, limit, _finding(lane, record, policy, count, limit, _known_results(lane, record))
        )

    def on_result(
        self, own: dict[str, Any], lane: Lane, record: Record, outcome: Outcome, policy: Policy
    ) -> Reading:
        """Learn whether the answer changed, and look for the same call and answer among the last ones."""
        if own.get("key") == record.key and record.ordinal > own.get("from", 0):
            _learn(own, lane, record)
        return _scattered(own, lane, record, outcome, policy) if policy.values["result_aware"] else QUIET

    def on_change(self, own: dict[str, Any], lane: Lane, record: Record) -> None:
        """A change makes what was called before it worth calling again."""
        if "totals" in own:
            own["totals"] = {key: n for key, n in own["totals"].items() if key == record.key}
        if own.get("key") not in (None, record.key):
            _restart(own, own["key"], lane.ordinal)

    def rearm(self, own: dict[str, Any], lane: Lane, keys: tuple[str, ...]) -> None:
        """Start counting these keys anew."""
        if own.get("key") in keys:
            _restart(own, "", lane.ordinal)
        own.pop("pairs", None)
        for key in keys:
            own.get("totals", {}).pop(key, None)


def _restart(own: dict[str, Any], key: str, ordinal: int) -> None:
    for name in _OF_A_STREAK:
        own.pop(name, None)
    own["key"], own["n"], own["same"], own["from"], own["first"] = key, 0, 0.0, ordinal, -1


def _consecutive(own: dict[str, Any], lane: Lane, record: Record, policy: Policy) -> Reading:
    values = policy.values
    if own.get("key") != record.key:
        _restart(own, record.key, record.ordinal - 1)
        own["n"], own["same"], own["at"], own["first"] = 1, 1.0, record.at, record.seq
        if values["ttl_from"] == "entry":
            own["times"] = [record.at]
        return Reading(1, values["max_repeats"])
    ttl, ttl_from = values["ttl_seconds"], values["ttl_from"]
    if ttl_from == "entry":
        # Each call ages by itself; one exactly as old as the time to live still counts.
        # Counting goes on a while beyond the limit, so that a ladder sees whether the streak went on.
        kept = values["max_repeats"] + _MAX_TIMES_BEYOND
        times = [at for at in own.get("times", ()) if record.at - at <= ttl][-kept:]
        if not times:
            _restart(own, record.key, record.ordinal - 1)
        own["n"] = len(times)
        own["same"] = float(len(times))
        own["times"] = [*times, record.at]
    elif ttl_from == "previous" and own["n"] and record.at - own["at"] > ttl:
        _restart(own, record.key, record.ordinal - 1)
    slow = own["n"] > 0 and record.weight < 1.0 and own.get("status") != ERROR
    own["at"] = record.at
    own["n"] += 1
    own["same"] += record.weight if slow else 1.0
    if own["first"] < 0:
        own["first"] = record.seq
    return _judge_streak(own, lane, record, policy)


def _judge_streak(own: dict[str, Any], lane: Lane, record: Record, policy: Policy) -> Reading:
    values = policy.values
    aware = values["result_aware"]
    count = own["n"]
    allowance = lane.allowance(record.key)
    if not aware:
        limit = values["max_repeats"] + allowance
        found = count >= limit and _finding(lane, record, policy, count, limit, "unknown", first=own["first"])
        return Reading(count, limit, found or None)
    poll = policy.traits.tool_class == "poll"
    limit = (values["poll_max_repeats"] if poll else values["max_repeats"]) + allowance
    warn_at = (values["poll_warn_at"] if poll else values["repeat_warn_at"]) + allowance
    same = own["same"]
    results = _series(own)
    if same >= limit * _ENOUGH:
        return Reading(
            int(same + _NEARLY),
            limit,
            _finding(
                lane,
                record,
                policy,
                max(count if results != "changing" else int(same + _NEARLY), limit),
                limit,
                _equal(own),
                first=own["first"],
            ),
        )
    if (
        warn_at > allowance
        and same >= warn_at * _ENOUGH
        and own.get("known", 0) >= min(warn_at, limit) - 1 - allowance
    ):
        return Reading(
            int(same + _NEARLY),
            limit,
            _finding(
                lane,
                record,
                policy,
                int(same + _NEARLY),
                limit,
                _equal(own),
                first=own["first"],
                advisory=True,
            ),
        )
    changing = values["max_repeats_changing"] + allowance
    if results == "changing" and count >= changing and policy.traits.tool_class not in ("poll", "read"):
        return Reading(
            int(same + _NEARLY),
            limit,
            _finding(lane, record, policy, count, changing, "changing", first=own["first"], advisory=True),
        )
    return Reading(int(same + _NEARLY), limit)


def _learn(own: dict[str, Any], lane: Lane, record: Record) -> None:
    last, last_status = own.get("result", ""), own.get("status", "")
    if last and record.result != last and not (record.status == ERROR and last_status == ERROR):
        # A change: this answer is the first of a new series. Calls still in flight belong to it.
        in_flight = sum(
            1 for other in lane.records if other.ordinal > record.ordinal and other.key == record.key
        )
        own["same"] = 1.0 + in_flight
        own["known"] = 0
        own["changes"] = own.get("changes", 0) + (record.status in (OK, EMPTY))
    own["known"] = own.get("known", 0) + 1
    own["result"], own["status"] = record.result, record.status


def _scattered(own: dict[str, Any], lane: Lane, record: Record, outcome: Outcome, policy: Policy) -> Reading:
    """The same call with the same answer again and again, other calls between: only worth a warning.

    Among the last calls it counts as long as nothing was changed in the meantime; over the whole run it takes one more,
    and then a change that did not change the answer is no excuse.
    """
    values = policy.values
    if policy.traits.tool_class == "poll" or record.weight < 1.0:
        return QUIET
    whole_run = _in_whole_run(own, record) if outcome.evidence else 0
    if record.new:
        return QUIET
    window = values["scattered_window_calls"]
    key, result = record.key, record.result
    recent = 0
    for other in lane.records[-window:]:
        if other.key == key and other.result == result and not other.spent:
            recent += 1
    allowance = lane.allowance(key)
    results = "errors" if record.status == ERROR else "equal"
    for count, limit, span in (
        (recent, values["scattered_repeats"], window),
        (whole_run, values["scattered_run_repeats"], None),
    ):
        if limit and count >= limit + allowance:
            finding = _finding(
                lane,
                record,
                policy,
                count,
                limit + allowance,
                results,
                advisory=True,
                scope="scattered",
                window=span,
            )
            return Reading(count, limit + allowance, finding)
    return QUIET


def _in_whole_run(own: dict[str, Any], record: Record) -> int:
    pairs = own.setdefault("pairs", {})
    pair = record.key[:6] + record.result[:6]
    count = pairs.pop(pair, 0) + 1
    pairs[pair] = count
    bounded(pairs, _MAX_PAIRS)
    return int(count)


def _series(own: dict[str, Any]) -> str:
    return "changing" if own.get("changes") else _equal(own)


def _equal(own: dict[str, Any]) -> str:
    if not own.get("known"):
        return "unknown"
    return {ERROR: "errors", EMPTY: "empty"}.get(own["status"], "equal")


def _in_window(lane: Lane, record: Record, policy: Policy) -> int:
    """Copies among the `window_calls` calls before this one, and this one."""
    values = policy.values
    earlier = lane.records[-1 - values["window_calls"] : -1]
    ttl = values["ttl_seconds"] if values["ttl_from"] != "never" else None
    return 1 + sum(
        1
        for other in earlier
        if other.key == record.key and not other.spent and (ttl is None or record.at - other.at <= ttl)
    )


def _in_run(own: dict[str, Any], record: Record) -> int:
    totals = own.setdefault("totals", {})
    count = totals.pop(record.key, 0) + 1
    totals[record.key] = count
    bounded(totals, MAX_TOTALS)
    return int(count)


def _known_results(lane: Lane, record: Record) -> str:
    known = {other.result for other in lane.records if other.key == record.key and other.result}
    return "unknown" if not known else "equal" if len(known) == 1 else "changing"


def _finding(
    lane: Lane,
    record: Record,
    policy: Policy,
    count: int,
    limit: int,
    results: str,
    *,
    first: int | None = None,
    advisory: bool = False,
    scope: str = "",
    window: int | None = None,
) -> Finding:
    values = policy.values
    same = [other for other in lane.records if other.key == record.key and not other.spent]
    return Finding(
        kind="repeat",
        count=count,
        limit=limit,
        window_seconds=None if values["ttl_from"] == "never" or scope else values["ttl_seconds"],
        window_calls=values["window_calls"] if values["repeat_scope"] == "window" else window,
        confidence=1.0 if results in ("equal", "errors") or not values["result_aware"] else 0.8,
        loop_id=loop_identity("repeat", (record.key,)),
        call_keys=(record.key,),
        seqs=evidence(same),
        first_seq=first if first is not None else same[0].seq,
        results=results,
        detail=detail(record.tool, advisory=advisory, scope=scope or values["repeat_scope"]),
    )
