"""Base of the limit detectors: settings, totals, and the comparison of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal, TypedDict

from detection.engine.calls import Finding, ObservedCall, ObservedUsage
from detection.engine.detectors.base import BaseDetector, ExampleCall, Reading, detail, evidence
from detection.engine.field import Field, number
from detection.engine.identity import digest_of_calls
from detection.engine.memory import Record, RunState
from detection.engine.policy_settings import PolicySettings

COST = "US dollars"
# The latest calls say enough about a sum; a judgement to keep the state small, not measured.
_MAX_EVIDENCE = 20
_COST_DECIMALS = 12
"""Decimals to which sums of costs are rounded: ten times 0.40 is 4.00."""
# Decimals that a finding shows: a hundredth of a cent.
_SHOWN_DECIMALS = 4
_ACCOUNTS: dict[str, AccountName] = {
    "rounds": "rounds",
    "calls": "calls",
    "seconds": "since",
    "tokens": "tokens",
    COST: "cost",
}
"""Names of the accounts by unit; that of the time has its beginning."""

_WHOLE = ("rounds", "calls")
"""Units whose setting names the n-th that is too many: the limit is one less."""

AccountName = Literal["rounds", "calls", "since", "tokens", "cost"]
Limit = tuple[str, AccountName, float, int]
"""Unit, account and value, and what had been used when it was granted."""


class Accounts(TypedDict, total=False):
    """What a run, a session or a family has used, and the limits that operators got a notice about, by unit.

    A run has rounds, with the hash of the current one. Its extensions are counted, and the latest has the rounds before
    it and its own.
    """

    calls: int
    tokens: int
    cost: float
    since: float
    noticed: dict[str, float]
    rounds: int
    round: int
    extension: list[int]
    extensions: int


def limit_templates(after_stop: str) -> Mapping[str, str]:
    """Return the message templates of limits: a limit is no loop, and no other inputs help.

    Parameters
    ----------
    after_stop
        What is left to do when nothing more runs, as sentences.
    """
    return {
        "warn": "[WARNING: $what. $advice]",
        "delay": "The call was not run. $sentence. $advice",
        "chance": "The call was not run. $sentence. $advice $next",
        "skipped": "The call was not run: an operator skipped it. $sentence. $advice",
        "expired": "The call was not run: $decider did not approve it in time. $sentence. $advice",
        "expired_stop": f"The run was stopped: $decider did not approve the call in time. $sentence. {after_stop}",
        "denied": f"The run was stopped. $sentence, and no justification was accepted. {after_stop}",
        "stop": f"$sentence. No further call runs. {after_stop}",
    }


class LimitDetector(BaseDetector):
    """Base class of the detectors that compare what is used with limits.

    Attributes
    ----------
    units : tuple of str
        Units with their own limit, the setting `{kind}_max_{unit}`.
    notice_setting : str
        The share of a limit at which operators get a notice: `{kind}_notice_share`.
    """

    templates = limit_templates("Only a person can raise this limit.")
    units: ClassVar[tuple[str, ...]] = ("calls", "seconds", "tokens", COST)
    notice_setting: ClassVar[str] = ""
    is_run_limit = True
    stands_alone = True
    judges_arguments = False
    describes_results = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.notice_setting = f"{cls.kind}_notice_share"

    def limits(self, policy: PolicySettings) -> tuple[Limit, ...]:
        """Return the limits that are set."""
        limits: tuple[Limit, ...] | None = policy.plans.get(self.kind)
        if limits is None:
            values = [
                (unit, _ACCOUNTS[unit], policy.values[self.raised_setting(unit)], 0) for unit in self.units
            ]
            limits = policy.plans[self.kind] = tuple(one for one in values if one[2] > 0)
        return limits

    def compare(
        self,
        limits: Iterable[Limit],
        accounts: Accounts,
        noticed: dict[str, float],
        run: RunState,
        record: Record,
        policy: PolicySettings,
    ) -> Reading:
        """Return the reading of the limit that is reached first, with a finding if it is or, once, nearly is spent."""
        notice_share = policy.values[self.notice_setting]
        was_found, highest, best = False, 0.0, ("", 0.0, 1.0)
        for unit, account, limit, before in limits:
            amount = accounts[account] if unit != "seconds" else record.at - accounts[account]
            share, is_found = (amount - before) / (limit - before), False
            if share >= notice_share:
                if not self.applies(unit, run, policy):
                    continue  # a limit without a consequence is no limit that the run is near
                # Noticed limits are kept by value: a raised limit is a new one.
                is_found = share >= 1 or noticed.get(unit) != limit
            if share > highest if is_found == was_found else is_found:
                was_found, highest, best = is_found, share, (unit, amount, limit)
        unit, amount, limit = best
        finding: Finding | None = None
        if was_found:
            finding = self._finding(run, record, unit, amount, limit, self.is_final(accounts, policy))
            if amount < limit:
                # Only the reported limit counts as noticed: if two come close on one call, the other follows on the
                # next.
                noticed[unit] = limit
        allowed = _allowed(limit, unit)
        return Reading(min(int(amount), allowed) if unit in _WHOLE else int(amount), allowed, finding)

    def applies(self, unit: str, run: RunState, policy: PolicySettings) -> bool:
        """Return whether the limit of this unit applies now."""
        return True

    def is_final(self, accounts: Accounts, policy: PolicySettings) -> bool:
        """Return whether a limit that is spent cannot be extended."""
        return False

    def raised_setting(self, unit: str) -> str:
        """Return the setting that an operator raises where findings count this unit."""
        name = "cost_usd" if unit == COST else unit
        return f"{self.kind}_max_{name}" if name else self.limit_setting

    def setting_of(self, limit: int, unit: str) -> int:
        """Return the value of `raised_setting` under which findings have this limit."""
        return limit + (unit in _WHOLE)

    def _finding(
        self, run: RunState, record: Record, unit: str, amount: float, limit: float, final: bool
    ) -> Finding:
        """Return the finding that a limit is spent or, below the limit, the notice to operators that it nearly is."""
        is_spent = amount >= limit
        if is_spent and unit in _WHOLE:
            amount -= 1  # The call in hand has not run.
        recent = run.records[-_MAX_EVIDENCE:]
        return Finding(
            kind=self.kind,
            count=int(amount),
            limit=_allowed(limit, unit),
            calls_digest=digest_of_calls(self.kind, (unit, "" if is_spent else "notice")),
            call_keys=(record.key,),
            seqs=evidence(recent),
            first_seq=recent[0].seq,
            detail=detail(
                record.tool,
                unit=unit,
                used=min(amount, limit - 1) if unit in _WHOLE else round(amount, _SHOWN_DECIMALS),
                allowed=limit - 1 if unit in _WHOLE else limit,
                notice=not is_spent,
                advisory=not is_spent,
                final=is_spent and final,
            ),
        )


def _allowed(limit: float, unit: str) -> int:
    """Return what a setting allows, as a whole number."""
    return int(limit) - 1 if unit in _WHOLE else max(1, int(limit))


def limit_settings(
    kind: str, whose: str = "", *, units: tuple[str, ...] = LimitDetector.units, calls: int = 0
) -> tuple[Field, ...]:
    """Return the settings of the limits on these units of a run, or of a `whose`, and of the notice before them."""
    of, about = (f" of a {whose}", f" about a {whose}") if whose else ("", "")
    whole = whose or "run"
    fields = {
        "calls": number(
            f"{kind}_max_calls", calls, 0, 10_000_000, f"Maximum calls{of}",
            f"Fires on the n-th call of the {whole}. 0 means no limit.",
        ),
        "seconds": number(
            f"{kind}_max_seconds", 0, 0, 31_536_000, f"Maximum duration{of}",
            "Fires on the first call after this time. 0 means no limit.", unit="seconds",
        ),
        "tokens": number(
            f"{kind}_max_tokens", 0, 0, 10**12, f"Maximum tokens{of}",
            f"Fires once the {whole} has used this many tokens. 0 means no limit.", unit="tokens",
        ),
        COST: Field(
            f"{kind}_max_cost_usd", "float", 0.0, f"Maximum cost{of}",
            f"Fires once the {whole} has cost this much. 0 means no limit.",
            unit=COST, minimum=0, maximum=1e9, weakens="up",
        ),
    }  # fmt: skip
    # As many systems announce a quota; a judgement, not measured. The preset `justified` has its own.
    notice = Field(
        f"{kind}_notice_share", "float", 0.8, f"Notice to operators{about}",
        "Share of a limit at which operators get a notice.", minimum=0.1, maximum=1.0,
    )  # fmt: skip
    return *(fields[unit] for unit in units), notice


def begin(own: Accounts, at: float) -> None:
    """Open the accounts."""
    own["calls"], own["tokens"], own["cost"], own["since"] = 0, 0, 0.0, at


def add(own: Accounts, used: ObservedCall | ObservedUsage) -> None:
    """Add tokens and cost of a call or of a response."""
    if not own:
        begin(own, used.at)
    if used.tokens:
        own["tokens"] += used.tokens
    if used.cost_usd:
        own["cost"] = round(own["cost"] + used.cost_usd, _COST_DECIMALS)


def add_call(own: Accounts, call: ObservedCall) -> None:
    """Add a call. Most come without tokens and cost, which are those of their response."""
    if not own or call.tokens or call.cost_usd:
        add(own, call)
    own["calls"] += 1


def fetch(number: int, run: str | None = None, session: str = "") -> ExampleCall:
    """Return an example call that differs from all others and has a new result."""
    text = f"text {number * 17} of page"
    arguments = {"page": f"{number} {number * number}"}
    return ExampleCall(str(number), "fetch", arguments, text, run=run, session=session)
