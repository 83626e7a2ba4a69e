"""Different calls of a tool that fail because of the service behind it.

    search("a") → 429   search("b") → 429   search("c") → time-out

Counts errors of one tool in a row that report a rate limit, a time-out or an outage, whatever the arguments. Such
errors are not the agent's loop: neither `outcome` nor `stagnation` counts them while this detector is on. It warns, and
never blocks or stops, whatever the ladder. Incidents of one tool and one kind of trouble are one loop, so an outage
that hits many sessions is shown as one. Any other result ends the series. The results of one model response count once.

- **False alarms:** tools that pass on the errors of the programs they run. Tools of the class `fallible`, such as a
  shell, are therefore not counted.
- **Misses:** trouble that is reported as an ordinary result, or in other words than the usual ones.
- **Tuning:** raise `outage_max_errors` where clients retry by themselves.
- **Cost:** constant per call.
"""

from __future__ import annotations

from typing import TypedDict

from detection.engine.bounded import drop_oldest
from detection.engine.calls import Finding
from detection.engine.detectors.base import (
    MAX_EVIDENCE,
    QUIET,
    SURE,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
)
from detection.engine.field import ladder, number, switch
from detection.engine.identity import digest_of_calls
from detection.engine.memory import Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome

# Tools with a series at a time; a judgement: the oldest is forgotten, so that the state stays below 32 KiB.
_MAX_TOOLS = 8
# Different calls that a finding names; a judgement for the same reason.
_MAX_KEYS = 12


class TroubleSeries(TypedDict):
    """The errors of one tool in a row that report provider trouble."""

    count: int
    round: int
    keys: list[str]
    seqs: list[int]
    trouble: str


class Outage(BaseDetector):
    """Counts errors of a provider per tool."""

    kind = "outage"
    label = "Provider trouble"
    headline = "Provider trouble"
    unit = "errors of a provider"
    sentence = "*$tool* failed *$count times in a row$span* because of its provider: $trouble"
    recurrence = "*$tool* fails because of its provider: *$detail*"
    message = "'$tool' failed $count times in a row because of its provider"
    advice = (
        "Varying the call will not help: wait before the next call, use another source, or report the outage."
    )
    # Trouble of a provider is nobody's loop.
    templates = {"warn": "[WARNING: $what. $advice]"}
    presets = ("standard",)
    spared_classes = ("fallible",)
    judges_arguments = False
    stands_alone = True
    key_settings = ("outage_ladder", "outage_max_errors")
    limit_setting = "outage_max_errors"
    describes_results = False
    settings = (
        switch(
            "outage_enabled", False, "Detect provider trouble",
            "Detect calls of one tool that fail because of rate limits, time-outs or outages.", weakens="off",
        ),
        # A judgement: two errors may be one short trouble. Turned off, the inspected runs of dev, dev2 and dev3 are
        # judged alike.
        number(
            "outage_max_errors", 3, 2, 100, "Limit for errors of a provider",
            "Warns on the n-th such error of one tool in a row, whatever the arguments.", unit="errors",
        ),
        ladder("outage_ladder", "warn", "Reaction to provider trouble"),
    )  # fmt: skip
    examples = {
        "outage": Example(
            "different calls, and the provider is in trouble",
            tuple(
                ExampleCall(letter, "search", {"q": f"topic {letter}"}, text, is_error=True)
                for letter, text in zip(
                    "ABCDEF",
                    ("429 Too Many Requests", "429 Too Many Requests", "the request timed out") * 2,
                    strict=True,
                )
            ),
        ),
    }

    def on_result(
        self,
        own: dict[str, TroubleSeries],
        run: RunState,
        record: Record,
        outcome: ResultOutcome,
        policy: PolicySettings,
    ) -> Reading:
        """Judge a call by its result."""
        if not outcome.trouble:
            own.pop(record.tool, None)
            return QUIET
        series = own.pop(record.tool, None) or {
            "count": 0,
            "round": 0,
            "keys": [],
            "seqs": [],
            "trouble": outcome.trouble,
        }
        own[record.tool] = series
        drop_oldest(own, _MAX_TOOLS)
        if not (policy.values["once_per_round"] and record.round and record.round == series["round"]):
            series["count"] += 1
        series["round"] = record.round
        series["seqs"] = sorted([*series["seqs"], record.seq])[-MAX_EVIDENCE:]
        if record.key not in series["keys"]:
            series["keys"] = [*series["keys"], record.key][-_MAX_KEYS:]
        count, limit = series["count"], policy.values["outage_max_errors"] + run.allowances.get("outage", 0)
        if count < limit:
            return Reading(count, limit)
        # A series stays what it began as, so that a time-out among rate limits is no second loop.
        trouble = series["trouble"]
        finding = Finding(
            kind="outage",
            count=count,
            limit=limit,
            confidence=SURE,
            calls_digest=digest_of_calls("outage", (record.tool, trouble)),
            call_keys=tuple(series["keys"]),
            seqs=tuple(series["seqs"]),
            first_seq=series["seqs"][0],
            results="errors",
            detail=detail(record.tool, advisory=True, trouble=trouble),
        )
        return Reading(count, limit, finding)

    def describe(self, finding: Finding, *, in_seconds: bool = False) -> str:
        """Return the finding in words, without arguments."""
        trouble = finding.detail.get("trouble")
        return super().describe(finding, in_seconds=in_seconds) + (f" ({trouble})" if trouble else "")

    def reset(self, own: dict[str, TroubleSeries], run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting errors again from zero."""
        own.clear()
