"""Limits of a family: calls, tokens and cost of a session and of all that it started.

    parent: 0.40   child 1: 0.40   child 2: 0.40 → 1.20 of 1.00 US dollars

Fires when the sessions of a family together reach `family_budget_max_calls`, `family_budget_max_tokens` or
`family_budget_max_cost_usd`, whichever session makes the call. What each of them used in its whole life counts, also before it
had a family, and nothing resets it. No limit is set by default. At `family_budget_notice_share` of a limit, operators get a notice that no agent
sees.

- **False alarms:** large fleets, as with any fixed limit.
- **Misses:** usage that a session reports after its last call counts when any session of the family makes the next one; the
  sessions of a family beyond 200.
- **Tuning:** set the cost that no task should be able to spend without asking.
- **Cost:** as `family`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detection.engine.calls import ObservedCall
from detection.engine.detectors.base import (
    QUIET,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    limit_finding,
)
from detection.engine.field import NOT_OF_TOOLS, Field, ladder, number, switch
from detection.engine.memory import Record, RunState

if TYPE_CHECKING:
    from detection.engine.policy import Policy

_COST = "US dollars"


class FamilyBudget(BaseDetector):
    """Adds up what the sessions of a family use and compares it with its limits."""

    kind = "family_budget"
    label = "Limits of a family"
    headline = "Limit of a family reached"
    unit = "of the limit of the family"
    sentence = "The sessions of the family used *$used of $allowed*"
    recurrence = "Families of sessions reach a limit: *$detail*"
    message = "the agents of this task have together reached $used of their limit of $allowed"
    advice = "Finish with what you have: only a person can raise this limit."
    again = "Every further call"
    key_settings = ("family_budget_ladder", "family_budget_max_calls", "family_budget_max_cost_usd")
    limit_setting = "family_budget_max_calls"
    is_run_limit = True
    spans_session = True
    spans_family = True
    describes_results = False
    settings = (
        switch(
            "family_budget_enabled", False, "Limit families",
            "Limit calls, tokens and cost of a session and those that it started.", weakens="off", scopes=NOT_OF_TOOLS,
        ),
        number(
            "family_budget_max_calls", 0, 0, 10_000_000, "Maximum calls of a family",
            "Fires on the n-th call of the family. 0 means no limit.",
        ),
        number(
            "family_budget_max_tokens", 0, 0, 10**12, "Maximum tokens of a family",
            "Fires once the family has used this many tokens. 0 means no limit.", unit="tokens",
        ),
        Field(
            "family_budget_max_cost_usd", "float", 0.0, "Maximum cost of a family",
            "Fires once the family has cost this much. 0 means no limit.",
            unit=_COST, minimum=0, maximum=1e9, weakens="up",
        ),
        Field(
            "family_budget_notice_share", "float", 0.8, "Notice about a family",
            "Share of a limit at which operators get a notice.", minimum=0.1, maximum=1.0,
        ),
        ladder("family_budget_ladder", "judge_or_ask", "Reaction to a limit of a family"),
    )  # fmt: skip
    examples = {
        "family_budget": Example(
            "the eighth call of eight, in three sessions (limit set for the picture)",
            tuple(
                ExampleCall(
                    str(n),
                    "fetch",
                    {"page": f"{n} {n * n}"},
                    f"text {n * 17} of page",
                    session=f"child {n % 3}",
                )
                for n in range(1, 9)
            ),
            values={"family_budget_max_calls": 8},
        ),
    }

    def on_call(
        self, own: dict[str, Any], run: RunState, record: Record, call: ObservedCall, policy: Policy
    ) -> Reading:
        """Judge a call before it runs."""
        family, values = run.family, policy.values
        if family is None or len(family.usage) < 2:
            return QUIET
        share_of_notice = values["family_budget_notice_share"]
        best, most = QUIET, (False, 0.0)
        for unit, amount, name in zip(("calls", "tokens", _COST), family.totals, _LIMITS, strict=True):
            limit = values[name]
            if limit <= 0:
                continue
            share = amount / limit
            is_found = share >= 1 or (share >= share_of_notice and family.noticed.get(unit) != limit)
            if (is_found, share) > most:
                finding = (
                    limit_finding(self.kind, run, record, unit, amount, limit, final=True)
                    if is_found
                    else None
                )
                best, most = Reading(int(amount), max(1, int(limit)), finding), (is_found, share)
        if best.finding is not None and best.finding.detail.get("notice"):
            family.noticed[str(best.finding.detail["unit"])] = best.finding.detail["allowed"]
        return best

    def raised_setting(self, unit: str) -> str:
        """Return the setting that an operator raises where findings count this unit."""
        return f"family_budget_max_{'cost_usd' if unit == _COST else unit or 'calls'}"


_LIMITS = tuple(f"family_budget_max_{name}" for name in ("calls", "tokens", "cost_usd"))
