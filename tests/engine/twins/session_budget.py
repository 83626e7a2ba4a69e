"""Twin of `session_budget`."""

from __future__ import annotations

from collections.abc import Sequence

from detection.engine.calls import Call
from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import History, Observation


def session_budget(run: History, policy: Policy, observations: Sequence[Observation]) -> Expected | None:
    """Add up every call that was sent, whatever came between; a call that was sent twice once."""
    if run.current is None or run.is_after_result:
        return None
    calls = list({one.call_id: one for one in observations if isinstance(one, Call)}.values())
    accounts = (
        (len(calls), policy.get("session_budget_max_calls")),
        (run.current.at - calls[0].at, policy.get("session_budget_max_seconds")),
        (sum(one.tokens for one in calls), policy.get("session_budget_max_tokens")),
        (sum(one.cost_usd for one in calls), policy.get("session_budget_max_cost_usd")),
    )
    spent = [
        (amount / limit, -place)
        for place, (amount, limit) in enumerate(accounts)
        if limit and amount >= limit
    ]
    if not spent:
        return None
    place = -max(spent)[1]
    amount, limit = accounts[place]
    # Of rounds and calls, the n-th is too many.
    if place == 0:
        return Expected("session_budget", amount - 1, limit - 1)
    return Expected("session_budget", int(amount), max(1, int(limit)))
