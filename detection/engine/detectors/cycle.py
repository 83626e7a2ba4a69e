"""The same few calls in a cycle.

    a b a b a b          two calls, three laps
    a b c a b c a b c    three calls, three laps

Counts identical laps of `cycle_min_length` to `cycle_max_length` calls. The shortest lap is reported; a lap of one call
is a repeat.

With `result_aware` on, laps whose results differ from one lap to the next are work in progress (edit, test, edit,
test); they are only warned about, at lap `max_repeats_changing`, and not if they scroll on to ever new results. Laps
without any results need `cycle_unknown_laps` laps, laps with a poll (`sleep 20`, then a look) `poll_warn_at`.

- **False alarms:** polls of two steps that are not declared as `poll`.
- **Misses:** laps longer than `cycle_max_length` and laps with an occasional extra step, which `stagnation` detects.
- **Tuning:** raise `cycle_min_laps` for tools that are meant to be used in turns.
- **Cost:** proportional to the longest lap. For every length, the detector keeps how many calls in a row equal the call
  one lap earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import (
    FAILS_AGAIN,
    LIKELY,
    NAMES_ONLY,
    QUIET,
    SAME_RESULTS,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
    evidence,
    fill,
)
from detection.engine.dispatching import inner
from detection.engine.errors import PolicyError
from detection.engine.field import ladder, number, switch
from detection.engine.identity import digest_of_calls, smallest_rotation
from detection.engine.memory import ERROR, PENDING, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.tool_verbs import moves_by_name


def _example(letter: str, tool: str, result: str) -> ExampleCall:
    return ExampleCall(letter, tool, {"of": letter}, result)


class Cycle(BaseDetector):
    """Counts identical laps of calls."""

    kind = "cycle"
    label = "Cycles"
    headline = "Cycle of calls"
    unit = "repetitions"
    sentence = "*$tool* ran in a cycle of $period calls *$count times$span*"
    recurrence = "*$tool* run in a cycle"
    message = "the same $period calls, including '$tool', were made $count times in a row"
    error_advice = FAILS_AGAIN
    advice = "The same steps will bring the same results: change the approach, or report what you have."
    spared_classes = ("poll",)
    presets = ("standard", "balanced", "conservative", "aggressive", "similarity")
    key_settings = ("cycle_ladder", "cycle_min_laps")
    limit_setting = "cycle_min_laps"
    further_limits = ("cycle_unknown_laps",)
    is_exact = True
    spans_tools = True
    settings = (
        switch(
            "cycle_enabled", False, "Detect cycles", "Detect repeated sequences of calls, such as A-B-A-B.",
            weakens="off",
        ),
        # One call after itself is a repeat, which has its own detector; so with the system that `balanced` repeats.
        number("cycle_min_length", 2, 2, 10, "Shortest cycle", "Calls in the shortest cycle to look for."),
        # One more than the system that `balanced` repeats; 5 and 7 judge the 140 inspected runs alike.
        number(
            "cycle_max_length", 6, 2, 10, "Longest cycle", "Calls in the longest cycle to look for.", weakens="down"
        ),
        # 2 and 4 find the same loops on the 140 inspected runs, with the same alarms; a judgement: two laps may be one
        # retry.
        number(
            "cycle_min_laps", 3, 2, 20, "Limit for cycles",
            "Fires on the n-th repetition of a cycle in a row if results are known.", unit="repetitions",
        ),
        # One lap more, because unknown results may differ; 3 and 5 judge the 140 inspected runs alike.
        number(
            "cycle_unknown_laps", 4, 2, 20, "Limit for cycles without results",
            "Fires on the n-th repetition of a cycle in a row if results are unknown.", unit="repetitions",
        ),
        ladder("cycle_ladder", "graduated", "Reaction to cycles"),
    )  # fmt: skip
    examples = {
        "cycle": Example(
            "two calls in turn, nothing changes",
            (_example("A", "tool_a", "state of A"), _example("B", "tool_b", "state of B")) * 6,
        ),
        "cycle-progress": Example(
            "build, test, build, test: every lap differs, not a loop",
            tuple(
                call
                for n in range(5)
                for call in (
                    ExampleCall("B", "build", {}, f"{n * 7 + 3} files compiled"),
                    ExampleCall("T", "run_tests", {}, f"{9 - n} of 40 failed"),
                )
            ),
            fires=False,
        ),
    }

    def on_call(
        self,
        own: dict[str, list[int]],
        run: RunState,
        record: Record,
        call: ObservedCall,
        policy: PolicySettings,
    ) -> Reading:
        """Judge a call before it runs."""
        values = policy.values
        longest = values["cycle_max_length"]
        records = run.records
        # By length of a lap: how many calls in a row equal the call one lap earlier.
        matches = own.setdefault("matches", [])
        if len(matches) != longest:
            matches[:] = [0] * longest
        key, size = record.key, len(records)
        if key not in [one.key for one in records[-1 - longest : -1]] and not any(matches):
            return QUIET
        for length in range(1, longest + 1):
            other = records[-1 - length] if size > length else None
            equal = other is not None and other.key == key and not other.is_obsolete
            matches[length - 1] = matches[length - 1] + 1 if equal else 0
        best = QUIET
        for length in range(values["cycle_min_length"], longest + 1):
            calls = matches[length - 1] + length
            if calls < 2 * length or matches[0] >= length - 1:
                continue
            reading = _judge(run, record, policy, length, calls)
            if reading.finding is not None:
                return reading
            if reading.reached * best.limit > best.reached * reading.limit:
                best = reading
        return best

    def reset(self, own: dict[str, list[int]], run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting laps again from zero; the calls themselves no longer count as evidence."""
        own["matches"] = []

    def recalled(self, finding: Finding, calls: Sequence[Record]) -> Finding:
        """Return a finding that was kept with its call, with the tools of the lap that ends with that call."""
        lap = tuple(inner(one.tool) for one in calls[max(0, len(calls) - finding.period) :])
        return replace(finding, pattern=lap, laps=finding.count)

    def is_refuted(self, results: str, detail: Mapping[str, Any]) -> bool:
        """Return whether the laps so far had the same results."""
        return results in SAME_RESULTS

    def describe(self, finding: Finding, *, in_seconds: bool = False) -> str:
        """Return the finding in words, without arguments."""
        if finding.detail.get(NAMES_ONLY):
            text = "the same $period tools, including '$tool', were called $count times in a row with any arguments"
            return fill(text, finding, in_seconds=in_seconds)
        return super().describe(finding, in_seconds=in_seconds)

    def memory_calls(self, values: Mapping[str, Any]) -> int:
        """Return how many calls a session must remember for these settings."""
        laps = max(values["cycle_min_laps"], values["cycle_unknown_laps"]) if values["cycle_enabled"] else 0
        return int(values["cycle_max_length"] * laps + 1)

    def validate(self, values: Mapping[str, Any]) -> None:
        """Check that the shortest lap is not longer than the longest."""
        if values.get("cycle_min_length", 0) > values.get("cycle_max_length", 99):
            raise PolicyError("cycle_min_length", "must be at most `cycle_max_length`")


def _judge(run: RunState, record: Record, policy: PolicySettings, length: int, size: int) -> Reading:
    """Judge the last `size` calls, each equal to the one a lap earlier: whole laps and the end of an earlier one."""
    values, laps = policy.values, size // length
    limit = values["cycle_min_laps"]
    results = "unknown"
    if values["result_aware"]:
        results = _lap_results(run.records, length, laps)
        limit = {"unknown": values["cycle_unknown_laps"], "changing": values["max_repeats_changing"]}.get(
            results, limit
        )
    if any(one.effect == "poll" for one in run.records[-length:]):
        # To wait and to look again is a poll of several steps.
        limit = max(limit, values["poll_warn_at"])
    limit += run.allowances.get(record.key, 0)
    if laps < limit or (results == "changing" and _goes_further(run.records[-length * laps : -1])):
        return Reading(laps, limit)
    keys = smallest_rotation([one.key for one in run.records[-length:]])
    calls = _with_first_lap(run, length, size)
    finding = Finding(
        kind="cycle",
        count=laps,
        limit=limit,
        confidence=1.0 if results in ("equal", "errors") else LIKELY,
        calls_digest=digest_of_calls("cycle", keys),
        call_keys=keys,
        seqs=evidence(calls),
        first_seq=calls[0].seq,
        results=results,
        period=length,
        detail=detail(record.tool, advisory=results == "changing"),
        pattern=tuple(inner(one.tool) for one in run.records[-length:]),
        laps=laps,
    )
    return Reading(laps, limit, finding)


def _goes_further(calls: list[Record]) -> bool:
    """Return whether each lap scrolls or takes the next item, and whatever else it does brings something new."""
    moves = {tool for tool in {one.tool for one in calls} if moves_by_name(tool)}
    others = [one for one in calls if one.tool not in moves]
    return bool(moves and others) and all(one.is_new for one in others)


def _with_first_lap(run: RunState, length: int, size: int) -> list[Record]:
    """Return the last `size` calls, and before them those of a lap that the first of them made obsolete by a change.

    In edit, undo, edit, undo, the second call changes what the first one did. Laps are counted from there.
    """
    records = run.records
    first = max(0, len(records) - size)
    if records[first].ordinal <= run.epoch:
        earliest = max(0, first - length + 1)
        while first > earliest and records[first - 1].key == records[first - 1 + length].key:
            first -= 1
    return records[first:]


def _lap_results(records: list[Record], length: int, laps: int) -> str:
    """Describe the known results, each compared with the one a lap earlier."""
    # More laps may be counted than calls remembered; a slice that starts before the first record would shift the pairs.
    laps = min(laps, len(records) // length)
    pairs = [
        (one, earlier)
        for one, earlier in zip(
            records[-length * (laps - 1) : -1], records[-length * laps : -1], strict=False
        )
        if one.status != PENDING and earlier.status != PENDING
    ]
    if not pairs:
        return "unknown"
    if any(one.result != earlier.result and one.status != ERROR for one, earlier in pairs):
        return "changing"
    return "errors" if all(one.status == ERROR for one, _ in pairs) else "equal"
