"""Limits of a session's whole life: calls, time, tokens and cost.

    run 1: 0.40 + 0.40   message   run 2: 0.40 → 1.20 of 1.00 US dollars

Fires when the session reaches `session_budget_max_calls`, `session_budget_max_seconds`, `session_budget_max_tokens` or
`session_budget_max_cost_usd`, beside the limits of a run, which `budget` has. Nothing resets what was used: no message, no new
run, no compaction, no approval, and no resumption of a stopped session. Calls of exempt tools, and calls repeated within
their round, count as well, but are not judged. No limit is set by default.

A person raises a limit by an amount: with *raise the limit* in an approval, or with `+` in a command, such as
`!/set(tool-loop-session-budget-max-cost-usd=+2)`. No raise removes a limit, and no decision to allow is remembered for the
next session. The judge decides about rounds of a run only, so where nobody attends, the session is stopped. At
`session_budget_notice_share` of a limit, operators get a notice that the agent never sees.

- **False alarms:** long-lived sessions, as with any fixed limit. Sessions that never end, such as those of a chat channel,
  need higher limits or none.
- **Tuning:** set the cost that nobody should be able to spend without asking.
- **Cost:** constant per call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detection.engine.calls import ObservedCall, Usage
from detection.engine.detectors.base import (
    COST_DECIMALS,
    QUIET,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    limit_finding,
)
from detection.engine.field import Field, ladder, number, switch
from detection.engine.memory import Record, RunState

if TYPE_CHECKING:
    from detection.engine.policy import Policy

_COST = "US dollars"


class SessionBudget(BaseDetector):
    """Adds up what a session uses over all its runs and compares it with its limits."""

    kind = "session_budget"
    label = "Session limits"
    headline = "Session limit reached"
    unit = "of the limit"
    sentence = "The session used *$used of $allowed*"
    recurrence = "Sessions reach a limit of their whole life: *$detail*"
    message = "this session has reached $used of its limit of $allowed"
    advice = "Finish with what you have: only a person can raise this limit."
    again = "Every further call"
    presets = ("standard",)
    key_settings = ("session_budget_ladder", "session_budget_max_calls", "session_budget_max_cost_usd")
    limit_setting = "session_budget_max_calls"
    is_run_limit = True
    spans_session = True
    describes_results = False
    settings = (
        switch(
            "session_budget_enabled", False, "Limit sessions",
            "Limit calls, time, tokens and cost of a session's whole life.", weakens="off",
        ),
        number(
            "session_budget_max_calls", 0, 0, 10_000_000, "Maximum calls of a session",
            "Fires on the n-th call of the session. 0 means no limit.",
        ),
        number(
            "session_budget_max_seconds", 0, 0, 31_536_000, "Maximum age of a session",
            "Fires on the first call after this time. 0 means no limit.", unit="seconds",
        ),
        number(
            "session_budget_max_tokens", 0, 0, 10**12, "Maximum tokens of a session",
            "Fires once the session has used this many tokens. 0 means no limit.", unit="tokens",
        ),
        Field(
            "session_budget_max_cost_usd", "float", 0.0, "Maximum cost of a session",
            "Fires once the session has cost this much. 0 means no limit.",
            unit=_COST, minimum=0, maximum=1e9, weakens="up",
        ),
        Field(
            "session_budget_notice_share", "float", 0.8, "Notice about a session",
            "Share of a limit at which operators get a notice.", minimum=0.1, maximum=1.0,
        ),
        ladder("session_budget_ladder", "judge_or_ask", "Reaction to a session's limit"),
    )  # fmt: skip
    examples = {
        "session_budget": Example(
            "the eighth call of eight, in the second run (limit set for the picture)",
            tuple(
                ExampleCall(
                    str(n), "fetch", {"page": f"{n} {n * n}"}, f"text {n * 17} of page", run=f"run-{n // 5}"
                )
                for n in range(1, 9)
            ),
            values={"session_budget_max_calls": 8},
        ),
    }

    def on_call(
        self, own: dict[str, Any], run: RunState, record: Record, call: ObservedCall, policy: Policy
    ) -> Reading:
        """Judge a call before it runs."""
        self.on_uncounted(own, call)
        limits = policy.plans.get(self.kind)
        if limits is None:
            limits = policy.plans[self.kind] = _limits(policy.values)
        if not limits:
            return QUIET
        best, most = QUIET, (False, 0.0)
        noticed, notice_share = own["noticed"], policy.values["session_budget_notice_share"]
        for unit, name, limit in limits:
            amount = own[name] if unit != "seconds" else record.at - own["since"]
            share = amount / limit
            # Noticed limits are kept by value: a raised limit is a new one.
            is_found = share >= 1 or (share >= notice_share and noticed.get(unit) != limit)
            if (is_found, share) > most:
                finding = limit_finding(self.kind, run, record, unit, amount, limit) if is_found else None
                best, most = Reading(int(amount), max(1, int(limit)), finding), (is_found, share)
        if best.finding is not None and best.finding.detail.get("notice"):
            noticed[str(best.finding.detail["unit"])] = best.finding.detail["allowed"]
        return best

    def on_uncounted(self, own: dict[str, Any], call: ObservedCall) -> None:
        """Add what a call uses, whether or not it is judged."""
        if not own:
            _begin(own, call.at)
        own["calls"] += 1
        # Most calls come without the usage of their response.
        if call.tokens:
            own["tokens"] += call.tokens
        if call.cost_usd:
            own["cost"] = round(own["cost"] + call.cost_usd, COST_DECIMALS)

    def on_usage(self, own: dict[str, Any], usage: Usage) -> None:
        """Add the usage of a model response that was reported by itself."""
        _begin(own, usage.at)
        own["tokens"] += usage.tokens
        own["cost"] = round(own["cost"] + usage.cost_usd, COST_DECIMALS)

    def on_rebuilt(self, own: dict[str, Any], calls: int, used: Usage) -> None:
        """Note what the session has used, after its state was rebuilt from its latest events."""
        if calls <= own.get("calls", 0):
            return  # all of them were folded again
        _begin(own, used.at)
        own["calls"], own["tokens"] = calls, max(own["tokens"], used.tokens)
        own["cost"], own["since"] = max(own["cost"], used.cost_usd), min(own["since"], used.at)

    def raised_setting(self, unit: str) -> str:
        """Return the setting that an operator raises where findings count this unit."""
        return f"session_budget_max_{'cost_usd' if unit == _COST else unit or 'calls'}"


def _begin(own: dict[str, Any], at: float) -> None:
    if not own:
        own |= {"calls": 0, "tokens": 0, "cost": 0.0, "since": at, "noticed": {}}


def _limits(values: Mapping[str, Any]) -> tuple[tuple[str, str, float], ...]:
    """Return unit, account and value of each limit that is set."""
    limits = (
        ("calls", "calls", values["session_budget_max_calls"]),
        ("seconds", "since", values["session_budget_max_seconds"]),
        ("tokens", "tokens", values["session_budget_max_tokens"]),
        (_COST, "cost", values["session_budget_max_cost_usd"]),
    )
    return tuple(one for one in limits if one[2] > 0)
