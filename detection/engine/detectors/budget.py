"""Limits of a run: rounds, calls, time, tokens and cost.

    round 41 of 40 · call 1,000 · 2.00 of 2.00 US dollars

Fires when the run reaches `budget_max_rounds`, `budget_max_calls`, `budget_max_seconds`, `budget_max_tokens` or
`budget_max_cost_usd`. It is a blunt instrument, and the only one that ends a loop nothing else detects. A third of
healthy runs pass forty rounds, so the round limit is soft in `standard`: it applies only if the last 20 calls brought few
new results. The other limits are hard. At `budget_notice_share` of a limit, operators get a notice that the agent never
sees. An accepted justification grants `budget_extension_rounds` further rounds, at most `budget_max_extensions` times.
A message resets none of them, except in an attended session, where a person sent it. `session_budget` has limits over all runs.

- **False alarms:** long, productive runs, as with any fixed limit.
- **Tuning:** set a cost limit that you would not want to explain.
- **Cost:** constant per call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detection.engine.calls import Finding, ObservedCall, Usage
from detection.engine.detectors.base import (
    COST_DECIMALS,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    limit_finding,
)
from detection.engine.field import Field, ladder, number, switch
from detection.engine.memory import PENDING, Record, RunState

if TYPE_CHECKING:
    from detection.engine.policy import Policy

_RECENT_CALLS = 20
_LITTLE_NEW = 0.25
_COST = "US dollars"


class Budget(BaseDetector):
    """Adds up what a run uses and compares it with its limits."""

    kind = "budget"
    label = "Budget"
    headline = "Budget spent"
    unit = "of the budget"
    sentence = "The run used *$used of $allowed*"
    recurrence = "Runs spend their whole budget: *$detail*"
    message = "this run has reached $used of its limit of $allowed"
    advice = "Finish with what you have, or break the request into smaller steps."
    presets = ("standard", "justified")
    key_settings = ("budget_ladder", "budget_max_calls", "budget_max_rounds")
    limit_setting = "budget_max_rounds"
    is_run_limit = True
    describes_results = False
    settings = (
        switch(
            "budget_enabled", False, "Limit runs", "Limit rounds, calls, time, tokens and cost of a run.",
            weakens="off",
        ),
        number(
            "budget_max_rounds", 100, 0, 1_000_000, "Maximum rounds",
            "Fires on the n-th round. 0 means no limit.", unit="rounds",
        ),
        switch(
            "budget_soft_rounds", True, "Soft round limit",
            "The round limit applies only if the last 20 calls brought few new results.", weakens="on",
        ),
        number(
            "budget_max_calls", 1000, 0, 10_000_000, "Maximum calls", "Fires on the n-th call. 0 means no limit."
        ),
        number(
            "budget_max_seconds", 0, 0, 31_536_000, "Maximum duration",
            "Fires on the first call after this time. 0 means no limit.", unit="seconds",
        ),
        number(
            "budget_max_tokens", 0, 0, 10**12, "Maximum tokens",
            "Fires once the run has used this many tokens. 0 means no limit.", unit="tokens",
        ),
        Field(
            "budget_max_cost_usd", "float", 0.0, "Maximum cost",
            "Fires once the run has cost this much. 0 means no limit.",
            unit=_COST, minimum=0, maximum=1e9, weakens="up",
        ),
        Field(
            "budget_notice_share", "float", 0.8, "Notice to operators",
            "Share of a limit at which operators get a notice.", minimum=0.1, maximum=1.0,
        ),
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
            tuple(
                ExampleCall(str(n), "fetch", {"page": f"{n} {n * n}"}, f"text {n * 17} of page")
                for n in range(1, 9)
            ),
            values={"budget_max_rounds": 8, "budget_soft_rounds": False},
        ),
    }

    def on_call(
        self, own: dict[str, Any], run: RunState, record: Record, call: ObservedCall, policy: Policy
    ) -> Reading:
        """Judge a call before it runs."""
        _add_usage(own, record, call)
        values = policy.values
        limits = policy.plans.get(self.kind)
        if limits is None:
            limits = policy.plans[self.kind] = _limits(values)
        used_before, granted = own.get("extension", (0, 0))
        notice_share = values["budget_notice_share"]
        # Whether the limit is spent, and its share; what is reported of it.
        most = (False, 0.0)
        best: tuple[float, float, Finding | None] = (0.0, 1.0, None)
        for unit, name, limit in limits:
            before = 0
            if granted and unit == "rounds":
                before, limit = used_before, used_before + granted + 1
            if limit <= 0:
                continue
            amount = own[name] if unit != "seconds" else record.at - own[name]
            # Of an extension, only its own rounds count towards the notice.
            share = (amount - before) / (limit - before)
            # The limit fires on the n-th round, so it is spent when that round begins.
            finding = None
            if share >= notice_share and (
                unit != "rounds" or not values["budget_soft_rounds"] or _little_new(run)
            ):
                finding = self._finding(own, run, record, values, unit, amount, limit)
            rank = (finding is not None, share)
            if rank > most:
                most, best = rank, (amount, limit, finding)
        amount, limit, finding = best
        if finding is not None and finding.detail.get("notice"):
            # Only the reported limit counts as noticed: if two come close on one call, the other follows on the next.
            noticed = finding.detail
            own["noticed"] = {**own.get("noticed", {}), str(noticed["unit"]): noticed["allowed"]}
        return Reading(int(amount), max(1, int(limit)), finding)

    def _finding(
        self,
        own: dict[str, Any],
        run: RunState,
        record: Record,
        values: Mapping[str, Any],
        unit: str,
        amount: float,
        limit: float,
    ) -> Finding | None:
        # Noticed limits are kept by value: a raised limit is a new one.
        if amount < limit and own.get("noticed", {}).get(unit) == limit:
            return None
        final = own.get("extensions", 0) >= values["budget_max_extensions"]
        return limit_finding(self.kind, run, record, unit, amount, limit, final=final)

    def on_usage(self, own: dict[str, Any], usage: Usage) -> None:
        """Add the usage of a model response that was reported by itself."""
        _begin(own, usage.at)
        own["tokens"] += usage.tokens
        own["cost"] = round(own["cost"] + usage.cost_usd, COST_DECIMALS)

    def extend(self, own: dict[str, Any], rounds: int) -> None:
        """Grant further rounds; the current round is the first of them."""
        own["extension"] = [max(0, own["rounds"] - 1), max(1, rounds)]
        own["extensions"] = own.get("extensions", 0) + 1
        own["noticed"] = {}

    def raised_setting(self, unit: str) -> str:
        """Return the setting that an operator raises where findings count this unit."""
        return f"budget_max_{'cost_usd' if unit == _COST else unit or 'rounds'}"


def _begin(own: dict[str, Any], at: float) -> None:
    if not own:
        own |= {"calls": 0, "rounds": 0, "tokens": 0, "cost": 0.0, "since": at, "round": -1}


def _add_usage(own: dict[str, Any], record: Record, call: ObservedCall) -> None:
    _begin(own, call.at)
    own["calls"] += 1
    if not record.round or record.round != own["round"]:
        own["rounds"] += 1
        own["round"] = record.round
    own["tokens"] += call.tokens
    if call.cost_usd:
        own["cost"] = round(own["cost"] + call.cost_usd, COST_DECIMALS)


def _limits(values: Mapping[str, Any]) -> tuple[tuple[str, str, float], ...]:
    """Return unit, account and limit of everything limited; rounds always, because they may be granted later."""
    limits = (
        ("rounds", "rounds", values["budget_max_rounds"]),
        ("calls", "calls", values["budget_max_calls"]),
        ("seconds", "since", values["budget_max_seconds"]),
        ("tokens", "tokens", values["budget_max_tokens"]),
        (_COST, "cost", values["budget_max_cost_usd"]),
    )
    return tuple(one for one in limits if one[2] > 0 or one[0] == "rounds")


def _little_new(run: RunState) -> bool:
    known = [one for one in run.records[-_RECENT_CALLS:] if one.status != PENDING]
    return len(known) >= _RECENT_CALLS // 2 and sum(1 for one in known if one.is_new) < _LITTLE_NEW * len(
        known
    )
