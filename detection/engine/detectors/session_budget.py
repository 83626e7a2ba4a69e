"""Limits of a session's whole life: calls, time, tokens and cost.

    run 1: 0.40 + 0.40   message   run 2: 0.40 → 1.20 of 1.00 US dollars

Fires when the session reaches `session_budget_max_calls`, `session_budget_max_seconds`, `session_budget_max_tokens` or
`session_budget_max_cost_usd`, beside the limits of a run, which `budget` has. Nothing resets what was used: no message,
no new run, no compaction, no approval, and no resumption of a stopped session. Calls of exempt tools, and calls
repeated within their round, count as well, but are not judged. No limit is set by default.

A person raises a limit by an amount: with *raise the limit* in an approval, or with `+` in a command, such as
`!/set(tool-loop-session-budget-max-cost-usd=+2)`. No raise removes a limit, and no decision to allow is remembered for
the next session. There is no limit over several sessions yet, such as one per agent and day. The judge decides about
rounds of a run only, so where nobody attends, the session is stopped. At `session_budget_notice_share` of a limit,
operators get a notice that the agent never sees.

- **False alarms:** long-lived sessions, as with any fixed limit. Sessions that never end, such as those of a chat
  channel, need higher limits or none.
- **Tuning:** set the cost that nobody should be able to spend without asking.
- **Cost:** constant per call.
"""

from __future__ import annotations

from detection.engine.calls import ObservedCall, ObservedUsage, Usage
from detection.engine.detectors.base import QUIET, Example, Reading
from detection.engine.detectors.limits import (
    Accounts,
    LimitDetector,
    add,
    add_call,
    begin,
    fetch,
    limit_settings,
)
from detection.engine.field import ladder, switch
from detection.engine.memory import Record, RunState
from detection.engine.policy_settings import PolicySettings


class SessionBudget(LimitDetector):
    """Adds up what a session uses over all its runs and compares it with its limits."""

    kind = "session_budget"
    label = "Session limits"
    headline = "Session limit reached"
    unit = "of the limit"
    sentence = "The session used *$used of $allowed*"
    recurrence = "Sessions reach a limit of their whole life: *$detail*"
    message = "this session has reached its limit of $allowed"
    advice = "Finish with what you have: only a person can raise this limit."
    again = "Every further call"
    presets = ("standard",)
    key_settings = ("session_budget_ladder", "session_budget_max_calls", "session_budget_max_cost_usd")
    limit_setting = "session_budget_max_calls"
    spans_session = True
    settings = (
        switch(
            "session_budget_enabled", False, "Limit sessions",
            "Limit calls, time, tokens and cost of a session's whole life.", weakens="off",
        ),
        *limit_settings("session_budget", "session"),
        ladder("session_budget_ladder", "judge_or_ask", "Reaction to a session's limit"),
    )  # fmt: skip
    examples = {
        "session_budget": Example(
            "the eighth call of eight, in the second run (limit set for the picture)",
            tuple(fetch(n, run=f"run-{n // 5}") for n in range(1, 9)),
            values={"session_budget_max_calls": 8},
        ),
    }

    def on_call(
        self, own: Accounts, run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
    ) -> Reading:
        """Judge a call before it runs."""
        add_call(own, call)
        limits = self.limits(policy)
        if not limits:
            return QUIET
        return self.compare(limits, own, own.setdefault("noticed", {}), run, record, policy)

    def on_uncounted(self, own: Accounts, call: ObservedCall) -> None:
        """Add what a call uses, whether or not it is judged."""
        add_call(own, call)

    def on_usage(self, own: Accounts, usage: ObservedUsage) -> None:
        """Add the usage of a model response that was reported by itself."""
        add(own, usage)

    def on_rebuilt(self, own: Accounts, calls: int, used: Usage) -> None:
        """Note the session's usage after its state was rebuilt from its latest events."""
        if calls <= own.get("calls", 0):
            return  # all of them were folded again
        if not own:
            begin(own, used.at)
        own["calls"], own["tokens"] = calls, max(own["tokens"], used.tokens)
        own["cost"], own["since"] = max(own["cost"], used.cost_usd), min(own["since"], used.at)
