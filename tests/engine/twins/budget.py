"""Twin of `budget`."""

from __future__ import annotations

from collections.abc import Sequence

from detection.engine.calls import Call
from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import History, Observation


def budget(run: History, policy: Policy, observations: Sequence[Observation]) -> Expected | None:
    """Add up everything that was used so far; only for hard limits."""
    if run.current is None or run.is_after_result:
        return None
    counted = {one.place for one in run.past}
    calls = [one for place, one in enumerate(observations) if isinstance(one, Call) and place in counted]
    rounds = 0
    for earlier, one in zip([None, *calls], calls, strict=False):
        rounds += earlier is None or one.round is None or one.round != earlier.round
    accounts = (
        (rounds, policy.get("budget_max_rounds")),
        (len(calls), policy.get("budget_max_calls")),
        (calls[-1].at - calls[0].at, policy.get("budget_max_seconds")),
        (sum(one.tokens for one in calls), policy.get("budget_max_tokens")),
        (sum(one.cost_usd for one in calls), policy.get("budget_max_cost_usd")),
    )
    spent = [
        (amount / limit, -place)
        for place, (amount, limit) in enumerate(accounts)
        if limit and amount >= limit
    ]
    if not spent:
        return None
    # The one most overdrawn speaks.
    place = -max(spent)[1]
    amount, limit = accounts[place]
    # Of rounds and calls, the n-th is too many.
    if place in (0, 1):
        return Expected("budget", amount - 1, limit - 1)
    return Expected("budget", int(amount), max(1, int(limit)))
