"""No new results for a while.

    read → x   list → y   read → x   grep → z   list → y   grep → z   read → x …

Counts calls in a row without a result that is new in this run and without a successful change. It covers long cycles,
shuffled calls and sweeps that start over, which the detectors that compare calls cannot see. Empty results, and a bare
"ok" for a new call, neither count nor reset the count. An error is never progress, but a new one counts 0.6 calls. Slow
identical calls count a fifth, calls of tools of the class `poll` a quarter. If the client never reports results, a call
is new if it was not made before, and the limit is doubled.

- **False alarms:** work that tries one thing in several ways before one of them succeeds.
- **Tuning:** raise `stagnation_max_calls` for agents that read the same things often. The default reaction warns twice,
  three calls apart, before it stops.
- **Cost:** constant per call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import (
    MAX_EVIDENCE,
    QUIET,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
)
from detection.engine.field import ladder, number, switch
from detection.engine.identity import loop_identity
from detection.engine.memory import ERROR, Record, RunState
from detection.engine.results import ResultOutcome

if TYPE_CHECKING:
    from detection.engine.policy import Policy

_MAX_KEYS = 12
_UNKNOWN_FACTOR = 2
_NEW_ERROR = 0.6
_POLL = 0.25
_ENOUGH = 1 - 1e-9


class Stagnation(BaseDetector):
    """Counts calls in a row without a new result."""

    kind = "stagnation"
    label = "Stagnation"
    headline = "No new results"
    unit = "calls without a new result"
    sentence = "The last *$calls calls$span* brought no new result"
    message = "the last $calls calls, up to '$tool', brought no new result"
    advice = "Step back: say what you know, what is missing, and choose a way you have not tried."
    key_settings = ("stagnation_ladder", "stagnation_max_calls")
    limit_setting = "stagnation_max_calls"
    only_warns_fallible = True
    describes_results = False
    settings = (
        switch(
            "stagnation_enabled", False, "Detect stagnation", "Detect series of calls without a new result.",
            weakens="off",
        ),
        number(
            "stagnation_max_calls", 5, 2, 1000, "Limit for calls without a new result",
            "Fires on the n-th call in a row without a new result or a successful change.",
        ),
        ladder("stagnation_ladder", "graduated", "Reaction to stagnation"),
    )  # fmt: skip
    examples = {
        "stagnation": Example(
            "a shuffle of calls that were all made before",
            tuple(
                ExampleCall(letter, f"tool_{letter.lower()}", {"of": letter}, f"state of {letter}")
                for letter in "ABCDCADBACDB"
            ),
        ),
    }

    def on_call(
        self, own: dict[str, Any], run: RunState, record: Record, call: ObservedCall, policy: Policy
    ) -> Reading:
        """Continue a stagnation on a call that belongs to it; any other call may bring a new result."""
        if not run.results:
            if run.is_new(record.key):
                own.clear()
                return QUIET
            _count(own, record)
            return _judge(own, run, record, policy.values["stagnation_max_calls"] * _UNKNOWN_FACTOR)
        if record.key not in own.get("keys", ()):
            return QUIET
        return _judge(own, run, record, policy.values["stagnation_max_calls"])

    def on_result(
        self, own: dict[str, Any], run: RunState, record: Record, outcome: ResultOutcome, policy: Policy
    ) -> Reading:
        """Judge a call by its result."""
        if run.results == 1:
            # The first result of this client: discard what was counted by calls alone.
            own.clear()
        if record.is_new and record.status != ERROR:
            if outcome.is_evidence:
                own.clear()
            return QUIET
        _count(own, record, poll=policy.traits.tool_class == "poll")
        return _judge(own, run, record, policy.values["stagnation_max_calls"])

    def on_change(self, own: dict[str, Any], run: RunState, record: Record) -> None:
        """Reset the count: a successful change is progress."""
        own.clear()

    def reset(self, own: dict[str, Any], run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting again from zero."""
        own.clear()


def _count(own: dict[str, Any], record: Record, *, poll: bool = False) -> None:
    weight = record.weight if record.status != ERROR else _NEW_ERROR if record.is_new else 1.0
    own["calls"] = own.get("calls", 0) + 1
    own["count"] = own.get("count", 0.0) + (min(weight, _POLL) if poll and record.status != ERROR else weight)
    keys = own.setdefault("keys", [])
    if record.key not in keys:
        keys.append(record.key)
        del keys[:-_MAX_KEYS]
    seqs = own.setdefault("seqs", [])
    seqs.append(record.seq)
    del seqs[:-MAX_EVIDENCE]


def _judge(own: dict[str, Any], run: RunState, record: Record, limit: int) -> Reading:
    limit += run.allowance("stagnation")
    count = own.get("count", 0.0)
    if count < limit * _ENOUGH:
        return Reading(int(count), limit)
    keys, rounded = tuple(own["keys"]), int(count + 0.5)
    # The identity stays the same when further calls join the loop.
    loop_id = own.setdefault("loop", loop_identity("stagnation", sorted(keys)))
    # Results may arrive in another order than their calls.
    seqs = tuple(sorted(own["seqs"]))
    finding = Finding(
        kind="stagnation",
        count=rounded,
        limit=limit,
        confidence=0.8 if run.results else 0.6,
        loop_id=loop_id,
        call_keys=keys,
        seqs=seqs,
        first_seq=seqs[0],
        results="unknown" if not run.results else "errors" if record.status == ERROR else "equal",
        period=len(keys),
        detail=detail(record.tool, calls=own["calls"] if own["calls"] != rounded else None),
    )
    return Reading(int(count), limit, finding)
