"""The run has used what it was given: rounds, calls, seconds, tokens or money.

    round 41 of 40 · call 1,000 · 2.00 of 2.00 US dollars

Blunt, but the only end of a loop that nothing else sees. A third of healthy runs pass forty rounds, so the round limit
is soft in `standard`: it reacts only where the last calls brought little new. The others are hard. At 80 % operators
get a notice, which the agent never sees. An accepted justification grants further rounds, as often as
`budget_max_extensions` says; then the limit is final. O(1) a call.
"""

from __future__ import annotations

from typing import Any

from detection.engine.calls import Finding
from detection.engine.detectors.base import QUIET, Detector, Reading, detail, evidence
from detection.engine.identity import loop_identity
from detection.engine.memory import PENDING, Lane, Record
from detection.engine.policy import Policy

_RECENT_CALLS = 20
_LITTLE_NEW = 0.25


class Budget(Detector):
    """Compares what a run has used with what it may use. The fold adds up the usage."""

    kind = "budget"
    switch = "budget_enabled"

    def on_call(self, own: dict[str, Any], lane: Lane, record: Record, policy: Policy) -> Reading:
        """Judge a call before it runs."""
        values = policy.values
        limits = policy.plans.get(self.kind)
        if limits is None:
            limits = policy.plans[self.kind] = _limits(values)
        granted = own.get("granted")
        notice_share = values["budget_notice_share"]
        best = QUIET
        used = 0.0
        for unit, name, limit in limits:
            if granted and unit == "rounds":
                limit = granted + 1
            if limit <= 0:
                continue
            amount = own[name] if unit != "seconds" else record.at - own[name]
            share = amount / limit
            # The round limit says "fires at the n-th round", so it is spent when that round begins.
            if share < notice_share or (
                unit == "rounds" and values["budget_soft_rounds"] and not _little_new(lane)
            ):
                reading = Reading(int(amount), int(limit))
            else:
                reading = _spent(own, lane, record, policy, unit, amount, limit)
            if (reading.finding is not None, share) > (best.finding is not None, used):
                best, used = reading, share
        if best.finding is not None and best.finding.detail.get("notice"):
            # Only what is told counts as told: of two limits that come close with one call, the other is next.
            told = best.finding.detail
            own["noticed"] = {**_noticed(own), str(told["unit"]): told["allowed"]}
        return best


def _limits(values: Any) -> tuple[tuple[str, str, float], ...]:
    """Every limit that is on, with the name of its account; the round limit may be granted later."""
    limits = (
        ("rounds", "rounds", values["budget_max_rounds"]),
        ("calls", "calls", values["budget_max_calls"]),
        ("seconds", "since", values["budget_max_seconds"]),
        ("tokens", "tokens", values["budget_max_tokens"]),
        ("US dollars", "cost", values["budget_max_cost_usd"]),
    )
    return tuple(one for one in limits if one[2] > 0 or one[0] == "rounds")


def _noticed(own: dict[str, Any]) -> dict[str, float]:
    """The limits that operators got a notice of, by unit; a limit that is raised is another one."""
    told = own.get("noticed")
    return told if isinstance(told, dict) else {}


def _little_new(lane: Lane) -> bool:
    known = [one for one in lane.records[-_RECENT_CALLS:] if one.status != PENDING]
    return len(known) >= _RECENT_CALLS // 2 and sum(1 for one in known if one.new) < _LITTLE_NEW * len(known)


def _spent(
    own: dict[str, Any], lane: Lane, record: Record, policy: Policy, unit: str, amount: float, limit: float
) -> Reading:
    over = amount >= limit
    count, whole = int(amount), max(1, int(limit))
    if not over and _noticed(own).get(unit) == limit:
        return Reading(count, whole)
    final = own.get("extensions", 0) >= policy.values["budget_max_extensions"]
    recent = lane.records[-_RECENT_CALLS:]
    finding = Finding(
        kind="budget",
        count=count,
        limit=whole,
        loop_id=loop_identity("budget", (unit, "notice" if not over else "")),
        call_keys=(record.key,),
        seqs=evidence(recent),
        first_seq=recent[0].seq,
        detail=detail(
            record.tool,
            unit=unit,
            used=round(amount, 4),
            allowed=limit,
            notice=not over,
            advisory=not over,
            final=over and final,
        ),
    )
    return Reading(count, whole, finding)
