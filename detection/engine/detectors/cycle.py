"""The same few calls round and round.

    a b a b a b          two calls, three laps
    a b c a b c a b c    three calls, three laps

For every lap length it keeps how many calls in a row equal the call one lap earlier, so a call costs O(longest lap).
The shortest lap wins; one call alone belongs to `repeat`. With `result_aware` on, answers that differ from lap to lap
are work in progress (edit, test, edit, test), and laps whose answers never came need one more. It errs on honest
two-step polls nobody declared, and misses laps longer than `cycle_max_length`, which `stagnation` sees.
"""

from __future__ import annotations

from typing import Any

from detection.engine.calls import Finding
from detection.engine.detectors.base import QUIET, Detector, Reading, detail, evidence
from detection.engine.identity import loop_identity, smallest_rotation
from detection.engine.memory import ERROR, PENDING, Lane, Record
from detection.engine.policy import Policy


class Cycle(Detector):
    """Counts equal laps of call keys."""

    kind = "cycle"
    switch = "cycle_enabled"

    def on_call(self, own: dict[str, Any], lane: Lane, record: Record, policy: Policy) -> Reading:
        """Judge a call before it runs."""
        values = policy.values
        longest = values["cycle_max_length"]
        records, matches = lane.records, own.setdefault("m", [])
        if len(matches) != longest:
            matches[:] = [0] * longest
        key, size = record.key, len(records)
        if not any(matches) and lane.recent(key, longest) is None:
            return QUIET
        for length in range(1, longest + 1):
            # The record in hand is the last one; the one a lap earlier lies `length` before it.
            other = records[-1 - length] if size > length else None
            equal = other is not None and other.key == key and not other.spent
            matches[length - 1] = matches[length - 1] + 1 if equal else 0
        best = QUIET
        for length in range(values["cycle_min_length"], longest + 1):
            laps = matches[length - 1] // length + 1
            if laps < 2 or matches[0] >= length - 1:
                continue
            reading = _judge(lane, record, policy, length, laps)
            if reading.finding is not None:
                return reading
            if reading.reached * best.limit > best.reached * reading.limit:
                best = reading
        return best

    def rearm(self, own: dict[str, Any], lane: Lane, keys: tuple[str, ...]) -> None:
        """Start counting laps anew; the records themselves are spent."""
        own["m"] = []


def _judge(lane: Lane, record: Record, policy: Policy, length: int, laps: int) -> Reading:
    values = policy.values
    limit = values["cycle_min_laps"]
    results = "unknown"
    if values["result_aware"]:
        results = _lap_results(lane.records, length, laps)
        limit = {"unknown": values["cycle_unknown_laps"], "changing": values["max_repeats_changing"]}.get(
            results, limit
        )
    limit += lane.allowance(record.key)
    if laps < limit:
        return Reading(laps, limit)
    keys = smallest_rotation([one.key for one in lane.records[-length:]])
    calls = lane.records[-length * laps :]
    finding = Finding(
        kind="cycle",
        count=laps,
        limit=limit,
        confidence=1.0 if results in ("equal", "errors") else 0.8,
        loop_id=loop_identity("cycle", keys),
        call_keys=keys,
        seqs=evidence(calls),
        first_seq=calls[0].seq,
        results=results,
        period=length,
        detail=detail(record.tool, advisory=results == "changing"),
    )
    return Reading(laps, limit, finding)


def _lap_results(records: list[Record], length: int, laps: int) -> str:
    """What the answers of the completed calls say, each compared with the one a lap earlier."""
    # More laps may have been counted than calls are remembered; a slice from beyond the start would shift the pairs.
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
