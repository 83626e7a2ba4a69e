"""Limits of a run: rounds, calls, time, tokens and cost.

    round 41 of 40 · call 1,000 · 2.00 of 2.00 US dollars

Fires when the run reaches `budget_max_rounds`, `budget_max_calls`, `budget_max_seconds`, `budget_max_tokens` or
`budget_max_cost_usd`. It is a blunt instrument, and the only one that ends a loop nothing else detects. A third of
healthy runs pass forty rounds, so the round limit is soft in `standard`: it applies only if the last 20 calls brought
few new results. The other limits are hard. At `budget_notice_share` of a limit, operators get a notice that the agent
never sees. An accepted justification grants `budget_extension_rounds` further rounds, at most `budget_max_extensions`
times. A message resets none of them, except in an attended session, where a person sent it. `session_budget` has limits
over all runs.

- **False alarms:** long, productive runs, as with any fixed limit.
- **Tuning:** set a cost limit that you would not want to explain.
- **Cost:** constant per call.
"""

from __future__ import annotations

from detection.engine.calls import ObservedCall, ObservedUsage
from detection.engine.detectors.base import SMALLER_STEPS, Example, Reading
from detection.engine.detectors.limits import (
    Accounts,
    LimitDetector,
    add,
    add_call,
    fetch,
    limit_settings,
    limit_templates,
)
from detection.engine.field import ladder, number, switch
from detection.engine.memory import PENDING, Record, RunState
from detection.engine.policy_settings import PolicySettings

# The window of the soft round limit, as `scattered_window_calls`; a judgement, not measured.
_RECENT_CALLS = 20
# Of fewer results than half of it, nothing can be said; a judgement, not measured.
_MIN_KNOWN_CALLS = _RECENT_CALLS // 2
# The run goes nowhere if less than a quarter of these calls brought something new; a judgement: alone, the limits of
# runs find nothing on the 140 inspected runs.
_LITTLE_NEW = 0.25


class Budget(LimitDetector):
    """Adds up what a run uses and compares it with its limits."""

    kind = "budget"
    label = "Budget"
    headline = "Budget spent"
    unit = "of the budget"
    sentence = "The run used *$used of $allowed*"
    recurrence = "Runs spend their whole budget: *$detail*"
    message = "this run has reached its limit of $allowed"
    advice = "Finish with what you have, or break the request into smaller steps."
    templates = limit_templates(SMALLER_STEPS)
    presets = ("standard", "justified")
    key_settings = ("budget_ladder", "budget_max_calls", "budget_max_rounds")
    limit_setting = "budget_max_rounds"
    units = ("rounds", *LimitDetector.units)
    settings = (
        switch(
            "budget_enabled", False, "Limit runs", "Limit rounds, calls, time, tokens and cost of a run.",
            weakens="off",
        ),
        # A third of the healthy recorded runs pass 40 rounds, so 40 cannot be the default; 99 and 101 judge the 140
        # inspected runs alike.
        number(
            "budget_max_rounds", 100, 0, 1_000_000, "Maximum rounds",
            "Fires on the n-th round. 0 means no limit.", unit="rounds",
        ),
        switch(
            "budget_soft_rounds", True, "Soft round limit",
            "The round limit applies only if the last 20 calls brought few new results.", weakens="on",
        ),
        # The only hard limit: ten times that of rounds; a judgement, not measured.
        *limit_settings("budget", calls=1000),
        # One extension is as long as the whole limit of the system that `justified` repeats.
        number(
            "budget_extension_rounds", 40, 1, 1_000_000, "Rounds per extension",
            "Rounds that an accepted justification grants.", unit="rounds",
        ),
        number(
            "budget_max_extensions", 1, 0, 100, "Maximum extensions", "How often a run may be extended.",
            unit="extensions", zero_is_off=False,
        ),
        ladder("budget_ladder", "judge_or_ask", "Reaction to a spent budget"),
    )  # fmt: skip
    examples = {
        "budget": Example(
            "the eighth round of eight (limit lowered for the picture)",
            tuple(fetch(n) for n in range(1, 9)),
            values={"budget_max_rounds": 8, "budget_soft_rounds": False},
        ),
    }

    def on_call(
        self, own: Accounts, run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
    ) -> Reading:
        """Judge a call before it runs."""
        add_call(own, call)
        # The limit fires on the n-th round, so it is spent when that round begins.
        if not record.round or record.round != own.get("round"):
            own["rounds"] = own.get("rounds", 0) + 1
            own["round"] = record.round
        limits, noticed = self.limits(policy), own.setdefault("noticed", {})
        if "extension" in own:
            # Only its own rounds count towards the notice.
            before, granted = own["extension"]
            others = [one for one in limits if one[0] != "rounds"]
            limits = (("rounds", "rounds", before + granted + 1, before), *others)
        return self.compare(limits, own, noticed, run, record, policy)

    def applies(self, unit: str, run: RunState, policy: PolicySettings) -> bool:
        """Return whether the limit of this unit applies now: a soft one only if the latest calls brought little new."""
        return unit != "rounds" or not policy.values["budget_soft_rounds"] or _little_new(run)

    def is_final(self, accounts: Accounts, policy: PolicySettings) -> bool:
        """Return whether the run was extended as often as it may be."""
        return bool(accounts.get("extensions", 0) >= policy.values["budget_max_extensions"])

    def on_usage(self, own: Accounts, usage: ObservedUsage) -> None:
        """Add the usage of a model response that was reported by itself."""
        add(own, usage)

    def extend(self, own: Accounts, rounds: int) -> None:
        """Grant further rounds; the current round is the first of them."""
        own["extension"] = [max(0, own.get("rounds", 0) - 1), max(1, rounds)]
        own["extensions"] = own.get("extensions", 0) + 1
        own["noticed"] = {}


def _little_new(run: RunState) -> bool:
    known = [one for one in run.records[-_RECENT_CALLS:] if one.status != PENDING]
    return len(known) >= _MIN_KNOWN_CALLS and sum(1 for one in known if one.is_new) < _LITTLE_NEW * len(known)
