"""Many calls of one tool within a second.

    fetch fetch fetch fetch fetch … in the same second

Counts calls of one tool within one second, whatever their arguments.

- **False alarms:** batches that a model issues in one round.
- **Tuning:** raise `burst_max_calls`.
- **Cost:** constant per call.
"""

from __future__ import annotations

from typing import Any

from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import BaseDetector, Example, ExampleCall, Reading, detail
from detection.engine.field import ladder, number, switch
from detection.engine.identity import digest_of_calls
from detection.engine.memory import Record, RunState
from detection.engine.policy_settings import PolicySettings


class Burst(BaseDetector):
    """Counts calls of one tool per second."""

    kind = "burst"
    label = "Bursts"
    headline = "Burst of calls"
    unit = "calls per second"
    sentence = "*$tool* was called *$count times* within one second"
    message = "'$tool' was called $count times within one second"
    advice = "Slow down, and use the results that you already have."
    presets = ("standard",)
    key_settings = ("burst_ladder", "burst_max_calls")
    limit_setting = "burst_max_calls"
    settings = (
        switch("burst_enabled", False, "Detect bursts", "Detect many calls of one tool per second."),
        number("burst_max_calls", 25, 2, 1000, "Limit for bursts", "Fires on the n-th call within a second."),
        ladder("burst_ladder", "warn", "Reaction to bursts"),
    )
    examples = {
        "burst": Example(
            "the same tool again and again within a second",
            tuple(ExampleCall(f"{n}", "fetch", {"n": f"{n} {n * n}"}, f"page {n * 31}") for n in range(3)),
            values={"burst_max_calls": 2},
        )
    }

    def on_call(
        self, own: dict[str, Any], run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
    ) -> Reading:
        """Judge a call before it runs."""
        if own.get("tool") != record.tool or record.at - own["since"] > 1:
            own |= {"tool": record.tool, "since": record.at, "seqs": []}
        own["seqs"] = [*own["seqs"], record.seq][-50:]
        count, limit = len(own["seqs"]), policy.values["burst_max_calls"] + run.allowances.get(self.kind, 0)
        if count < limit:
            return Reading(count, limit)
        finding = Finding(
            kind=self.kind,
            count=count,
            limit=limit,
            calls_digest=digest_of_calls(self.kind, (record.tool,)),
            call_keys=(record.key,),
            seqs=tuple(own["seqs"]),
            first_seq=own["seqs"][0],
            detail=detail(record.tool),
        )
        return Reading(count, limit, finding)

    def reset(self, own: dict[str, Any], run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting again from zero."""
        own.clear()
