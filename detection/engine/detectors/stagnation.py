"""Nothing new for a while.

    read → x   list → y   read → x   grep → z   list → y   grep → z   read → x …

Counts calls in a row that bring no answer unseen in this run and no successful change. It covers what the shape
detectors cannot: long cycles, shuffles, sweeps that start over. An answer that merely is empty, or a bare "ok" for a
new piece of work, neither counts nor clears. An error is never progress: one unseen so far weighs a little less than
one seen before. Calls that come slowly weigh a fifth, those of a poll a quarter. For clients that never send
results a call is new when its key is, at twice the limit. It errs where honest work re-reads a lot before a change,
hence it warns early and refuses late. O(1) a call.
"""

from __future__ import annotations

from typing import Any

from detection.engine.calls import Finding
from detection.engine.detectors.base import MAX_EVIDENCE, QUIET, Detector, Reading, detail
from detection.engine.identity import loop_identity
from detection.engine.memory import ERROR, Lane, Record
from detection.engine.policy import Policy
from detection.engine.results import Outcome

_MAX_KEYS = 12
_UNKNOWN_FACTOR = 2
_NEW_ERROR = 0.6
_POLL = 0.25
_ENOUGH = 1 - 1e-9


class Stagnation(Detector):
    """Counts calls in a row without news."""

    kind = "stagnation"
    switch = "stagnation_enabled"

    def on_call(self, own: dict[str, Any], lane: Lane, record: Record, policy: Policy) -> Reading:
        """A call that was made before continues a stagnation; a new one may end it and goes through."""
        if not lane.results:
            if lane.see(record.key):
                own.clear()
                return QUIET
            _count(own, record)
            return _judge(own, lane, record, policy.values["stagnation_max_calls"] * _UNKNOWN_FACTOR)
        if record.key not in own.get("keys", ()):
            return QUIET
        return _judge(own, lane, record, policy.values["stagnation_max_calls"])

    def on_result(
        self, own: dict[str, Any], lane: Lane, record: Record, outcome: Outcome, policy: Policy
    ) -> Reading:
        """Judge a call by its result."""
        if lane.results == 1:
            # The first answer of a client that was silent so far: what was counted by keys alone is void.
            own.clear()
        if record.new and record.status != ERROR:
            if outcome.evidence:
                own.clear()
            return QUIET
        _count(own, record, poll=policy.traits.tool_class == "poll")
        return _judge(own, lane, record, policy.values["stagnation_max_calls"])

    def on_change(self, own: dict[str, Any], lane: Lane, record: Record) -> None:
        """A successful change is news."""
        own.clear()

    def rearm(self, own: dict[str, Any], lane: Lane, keys: tuple[str, ...]) -> None:
        """Start counting anew."""
        own.clear()


def _count(own: dict[str, Any], record: Record, *, poll: bool = False) -> None:
    weight = record.weight if record.status != ERROR else _NEW_ERROR if record.new else 1.0
    own["n"] = own.get("n", 0.0) + (min(weight, _POLL) if poll and record.status != ERROR else weight)
    keys = own.setdefault("keys", [])
    if record.key not in keys:
        keys.append(record.key)
        del keys[:-_MAX_KEYS]
    seqs = own.setdefault("seqs", [])
    seqs.append(record.seq)
    del seqs[:-MAX_EVIDENCE]


def _judge(own: dict[str, Any], lane: Lane, record: Record, limit: int) -> Reading:
    limit += lane.allowance("stagnation")
    count = own.get("n", 0.0)
    if count < limit * _ENOUGH:
        return Reading(int(count), limit)
    keys = tuple(own["keys"])
    # The loop keeps the name it had when it was found, whatever else comes up while it goes on.
    name = own.setdefault("loop", loop_identity("stagnation", sorted(keys)))
    # Answers may come in another order than their calls.
    seqs = tuple(sorted(own["seqs"]))
    finding = Finding(
        kind="stagnation",
        count=int(count + 0.5),
        limit=limit,
        confidence=0.8 if lane.results else 0.6,
        loop_id=name,
        call_keys=keys,
        seqs=seqs,
        first_seq=seqs[0],
        results="unknown" if not lane.results else "errors" if record.status == ERROR else "equal",
        period=len(keys),
        detail=detail(record.tool),
    )
    return Reading(int(count), limit, finding)
