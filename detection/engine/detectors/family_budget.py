"""Limits of a family: calls, tokens and cost of a session and of all that it started.

    parent: 0.40   child 1: 0.40   child 2: 0.40 → 1.20 of 1.00 US dollars

Fires when the sessions of a family together reach `family_budget_max_calls`, `family_budget_max_tokens` or
`family_budget_max_cost_usd`, whichever session makes the call. What each of them used in its whole life counts, also
before it had a family, and nothing resets it. The incident is one of the session at the top, and names the others. No
limit is set by default. At `family_budget_notice_share` of a limit, operators get a notice that no agent sees.

- **False alarms:** large fleets, as with any fixed limit.
- **Misses:** usage that a session reports after its last call counts when any session of the family makes the next one;
  the sessions of a family beyond 200.
- **Tuning:** set the cost that no task should be able to spend without asking.
- **Cost:** as `family`.
"""

from __future__ import annotations

from detection.engine.calls import ObservedCall
from detection.engine.detectors.base import QUIET, Example, Reading
from detection.engine.detectors.limits import COST, Accounts, LimitDetector, fetch, limit_settings
from detection.engine.field import NOT_OF_TOOLS, ladder, switch
from detection.engine.memory import Record, RunState
from detection.engine.policy_settings import PolicySettings

# By definition: what one session alone uses is limited by the other detectors.
_SEVERAL = 2
_UNITS = ("calls", "tokens", COST)


class FamilyBudget(LimitDetector):
    """Adds up what the sessions of a family use and compares it with its limits."""

    kind = "family_budget"
    label = "Limits of a family"
    headline = "Limit of a family reached"
    unit = "of the limit of the family"
    sentence = "The sessions of the family used *$used of $allowed*"
    recurrence = "Families of sessions reach a limit: *$detail*"
    message = "the agents of this task have together reached their limit of $allowed"
    advice = "Finish with what you have: only a person can raise this limit."
    again = "Every further call"
    key_settings = ("family_budget_ladder", "family_budget_max_calls", "family_budget_max_cost_usd")
    limit_setting = "family_budget_max_calls"
    spans_session = True
    spans_family = True
    needs_family = True
    units = _UNITS
    settings = (
        switch(
            "family_budget_enabled", False, "Limit families",
            "Limit calls, tokens and cost of a session and the sessions it started.",
            weakens="off", scopes=NOT_OF_TOOLS,
        ),
        *limit_settings("family_budget", "family", units=_UNITS),
        ladder("family_budget_ladder", "judge_or_ask", "Reaction to a limit of a family"),
    )  # fmt: skip
    examples = {
        "family_budget": Example(
            "the eighth call of eight, in three sessions (limit set for the picture)",
            tuple(fetch(n, session=f"child {n % 3}") for n in range(1, 9)),
            values={"family_budget_max_calls": 8},
        ),
    }

    def on_call(
        self, own: Accounts, run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
    ) -> Reading:
        """Judge a call before it runs."""
        family = run.family
        if family is None or len(family.usage) < _SEVERAL:
            return QUIET
        calls, tokens, cost = family.totals
        accounts: Accounts = {"calls": calls, "tokens": tokens, "cost": cost}
        return self.compare(self.limits(policy), accounts, family.noticed, run, record, policy)

    def is_final(self, accounts: Accounts, policy: PolicySettings) -> bool:
        """Return that nothing extends a family's limit."""
        return True
