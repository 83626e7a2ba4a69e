"""Different calls with the same result.

    search("a") → 401   search("b") → 401   search("c") → 401   search("d") → 401

Comparing calls cannot detect this loop; comparing results can. Counts identical results of one tool in a row, whatever
other tools do in between. Times and ids are masked. In errors, numbers of lines and columns and the words of the call's
own arguments are masked too: "denied for ann" and "denied for bob" are one error, and so is the one about two paths.
Fires at `outcome_max_errors` identical errors, at `outcome_max_results` identical results, or at `outcome_max_similar`
where the arguments hardly differ either. Advises at `outcome_max_refusals` identical errors of a tool that writes, if
at least half of its arguments stay the same and the user has spoken in between: asking the user did not help. Empty
results, a bare "ok", the placeholder of a picture and receipts of writes do not count; a bare number or Boolean
(`false`, `[(0,)]`) counts half, because many calls have it in common. The results of one model response count once. A
different result of the tool, a successful change elsewhere, or several new results of other tools end the series; a
message of the user ends one without errors. What the host refuses to run is one series, whichever tools are called, and
escalates for a shell, too: the command never ran. One and the same call with other work in between is a scattered
repeat and only advised against; it is left to `repeat` below `max_repeats`.

- **False alarms:** legitimate sweeps that find nothing. Different searches that all say so are warned about and never
  blocked, and so are tools of the class `fallible`, such as a shell.
- **Misses:** short series of "nothing found" in different words.
- **Tuning:** raise `outcome_max_errors` for tools that fail in the course of normal work, or declare them `fallible`;
  list ids in results under `volatile_result_fields`.
- **Cost:** constant per call. `outcome_method = literal` compares the text of the last `window_calls` results of all
  tools and stores it in the session's state, at most 1,200 bytes each: texts in longer results are compared by the
  pairs of words that they have in common, from beginning to end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import (
    QUIET,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
    evidence,
    is_within_repeats,
)
from detection.engine.field import choice, ladder, number, ratio, switch
from detection.engine.identity import encoded, loop_identity
from detection.engine.memory import ERROR, Record, RunState, drop_oldest
from detection.engine.results import ResultOutcome, normalise
from detection.engine.similarity import (
    literal_result,
    literal_result_similarity,
    shared_fields,
    sketch_similarity,
)

if TYPE_CHECKING:
    from detection.engine.policy import Policy

_MAX_TOOLS = 8
# New results of other tools that end a tool's series.
# The series of what the host refuses; no tool has this name.
_HOST = ""
_NEW_RESULTS_THAT_END_A_SERIES = 4
_SIMILAR_ARGUMENTS = 0.7
_HALF = 0.5
_VALUE = 0.5
_MAX_LITERAL_BYTES = 1200
_MAX_TEXTS_BYTES = 12_000
# Fields that `literal_masked` removes from JSON results, whatever the tool.
_ID_FIELDS = frozenset(
    ("id", "message_id", "messageid", "uuid", "ts", "time", "date", "created_at", "sent_at", "duration")
)


class Outcome(BaseDetector):
    """Counts identical results per tool."""

    kind = "outcome"
    label = "Identical results"
    headline = "Same result every time"
    unit = "identical results"
    sentence = "*$tool* returned the same *$result $calls times$span* with $arguments arguments"
    recurrence = "*$tool* keeps returning the same result"
    message = "'$tool' returned the same $result $calls times, whatever the arguments"
    advice = "Find out why the result stays the same before calling again, or report what you have."
    presets = ("standard", "similarity")
    key_settings = ("outcome_ladder", "outcome_max_results", "outcome_max_errors", "outcome_max_refusals")
    limit_setting = "outcome_max_results"
    only_warns_fallible = True
    describes_results = False
    counts_results = True
    settings = (
        switch(
            "outcome_enabled", False, "Detect identical results",
            "Detect different calls of one tool that return the same result.", weakens="off",
        ),
        number(
            "outcome_max_results", 6, 2, 100, "Limit for identical results",
            "Fires on the n-th identical result of one tool in a row, whatever the arguments.", unit="results",
        ),
        number(
            "outcome_max_errors", 4, 2, 100, "Limit for identical errors",
            "Fires on the n-th identical error of one tool in a row, whatever the arguments.", unit="errors",
        ),
        number(
            "outcome_max_similar", 4, 2, 100, "Limit for identical results of similar calls",
            "Fires on the n-th call in a row with similar arguments and an identical result.",
        ),
        number(
            "outcome_max_refusals", 3, 0, 100, "Limit for rejected writes",
            "Warns on the n-th identical error of a tool that writes, "
            "if at least half of the arguments are the same and "
            "the user spoke in between. 0 turns this off.", unit="errors",
        ),
        ratio(
            "outcome_ratio", 0.9, "Similarity of results",
            "Results that are at least this similar count as identical. Only where results are compared as text: "
            "`fingerprint`, the method of `standard`, compares them exactly after masking.",
        ),
        choice(
            "outcome_method", "fingerprint", ("fingerprint", "literal", "literal_masked"), "Comparison of results",
            "Fingerprints of masked results, or the similarity of their text (stored in the session's state), as "
            "received or masked.",
        ),
        ladder("outcome_ladder", "graduated", "Reaction to identical results"),
    )  # fmt: skip
    examples = {
        "outcome": Example(
            "different calls, one and the same error",
            tuple(
                ExampleCall(
                    name[0].upper(), "read_mailbox", {"user": name}, f"denied for {name}", is_error=True
                )
                for name in ("ann", "bob", "cid", "dan", "eve", "fay")
            ),
        ),
    }

    def on_call(
        self, own: dict[str, Any], run: RunState, record: Record, call: ObservedCall, policy: Policy
    ) -> Reading:
        """Continue the loop on a further call of a tool that keeps returning the same result."""
        if policy.values["outcome_method"] != "fingerprint":
            return QUIET
        series = own.get(record.tool) or next(
            (one for name, one in own.items() if name != "texts" and one.get("tool") == record.tool), None
        )
        if series is None:
            return QUIET
        # A poll is expected to return the same, but not to fail.
        if policy.traits.tool_class == "poll" and not series["failed"]:
            return QUIET
        return _judge(series, run, record, policy)

    def on_result(
        self, own: dict[str, Any], run: RunState, record: Record, outcome: ResultOutcome, policy: Policy
    ) -> Reading:
        """Judge a call by its result."""
        if policy.values["outcome_method"] != "fingerprint":
            return _literal(own, run, record, outcome, policy)
        if not _counts(own, record, outcome, policy):
            return QUIET
        # It is the host that refuses, whichever tool is called.
        name = _HOST if outcome.is_refused else record.tool
        series = own.pop(name, None)
        # A slow identical call counts as a fifth, unless it failed.
        weight = 1 if record.status == ERROR else record.weight * (_VALUE if outcome.is_value else 1)
        if (
            series is None
            or series["result"] != record.result
            or run.new_results - series["new_results"] >= _NEW_RESULTS_THAT_END_A_SERIES
        ):
            own[name] = series = {
                "result": record.result, "calls": 1, "count": _in_tenths(weight), "similar": 1, "first": record.seq,
                "sketch": record.sketch, "round": record.round, "new_results": run.new_results,
                "failed": record.status == ERROR,
            }  # fmt: skip
            if record.effect == "write":
                series["refused"], series["spoken"] = 1, False
            if policy.values["result_aware"] and policy.traits.reads and outcome.finds_nothing:
                series["found_nothing"] = True
            if outcome.is_refused:
                series["tool"], series["refusal"] = record.tool, True
            drop_oldest(own, _MAX_TOOLS)
            return _judge(series, run, record, policy)
        series["calls"] += 1
        if not (policy.values["once_per_round"] and record.round and record.round == series.get("round")):
            series["count"] = _in_tenths(series["count"] + weight)
            is_similar = (
                series["sketch"] is not None
                and sketch_similarity(record.sketch, series["sketch"], _SIMILAR_ARGUMENTS)
                >= _SIMILAR_ARGUMENTS
            )
            series["similar"] = _in_tenths(series["similar"] + weight) if is_similar else 1
            if record.effect == "write":
                resembles = is_similar or (
                    series["sketch"] is not None and shared_fields(record.sketch, series["sketch"]) >= _HALF
                )
                series["refused"] = series.get("refused", 0) + 1 if resembles else 1
                if not resembles:
                    series["spoken"] = False
        series["round"] = record.round
        series["new_results"], series["sketch"] = run.new_results, record.sketch
        series["failed"] = record.status == ERROR
        if name != record.tool or "tool" in series:
            series["tool"] = record.tool
        own[name] = series
        drop_oldest(own, _MAX_TOOLS)
        return _judge(series, run, record, policy)

    def on_message(self, own: dict[str, Any]) -> None:
        """Reset successful results: after a user message, reading again is normal."""
        for tool in [name for name, series in own.items() if name != "texts"]:
            if own[tool]["failed"]:
                own[tool]["spoken"] = True
            else:
                del own[tool]

    def on_change(self, own: dict[str, Any], run: RunState, record: Record) -> None:
        """Reset other tools: after a change it makes sense to try them again."""
        for tool in [
            name
            for name in own
            if name not in ("texts", _HOST) and (name != record.tool or record.effect == "command")
        ]:
            del own[tool]

    def reset(self, own: dict[str, Any], run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting results again from zero."""
        own.clear()


def _counts(own: dict[str, Any], record: Record, outcome: ResultOutcome, policy: Policy) -> bool:
    """Return whether a result belongs to a series; of a poll, only an error does, and anything else ends the series."""
    if not outcome.is_evidence or (outcome.trouble and policy.values["outage_enabled"]):
        return False
    if policy.traits.tool_class == "poll" and record.status != ERROR and not outcome.is_plain:
        own.pop(record.tool, None)
    return policy.traits.tool_class != "poll" or (record.status == ERROR and not outcome.is_plain)


def _in_tenths(count: float) -> float:
    """Return a sum of fifths without its rounding error."""
    return count if type(count) is int or count % 1 == 0 else round(count, 1)


def _judge(series: dict[str, Any], run: RunState, record: Record, policy: Policy) -> Reading:
    values = policy.values
    count, failed, result = series["count"], series["failed"], series["result"]
    allowance = run.allowance("outcome")
    is_shared = bool(series.get("refusal"))
    limit_name = "outcome_max_errors" if failed else "outcome_max_results"
    limit = values[limit_name] + allowance
    similar_limit = values["outcome_max_similar"] + allowance
    is_advisory = False
    if count < limit and series["similar"] < similar_limit:
        refusals = values["outcome_max_refusals"]
        if not (
            refusals and failed and series.get("spoken") and series.get("refused", 0) >= refusals + allowance
        ):
            return Reading(int(count), limit)
        is_advisory, count, limit = True, series["refused"], refusals + allowance
    elif series["similar"] >= similar_limit:
        limit, limit_name = min(limit, similar_limit), "outcome_max_similar"
    else:
        # Different searches that all find nothing may be an honest sweep.
        is_advisory = series.get("found_nothing", False)
    calls = [one for one in run.records if one.result == result and (is_shared or one.tool == record.tool)]
    keys = dict.fromkeys(one.key for one in calls)
    keys[record.key] = None
    if len(keys) == 1 and not policy.reads_plainly:
        if is_within_repeats(count, record.key, run, policy, limit_name):
            return Reading(int(count), limit)
        # One and the same call with other work in between is a scattered repeat, which is never blocked.
        is_advisory = True
    finding = Finding(
        kind="outcome",
        count=int(count),
        limit=limit,
        confidence=0.9 if failed else 0.8,
        loop_id=loop_identity("outcome", ("" if is_shared else record.tool, result)),
        call_keys=tuple(keys),
        seqs=evidence(calls),
        first_seq=series["first"],
        results="errors" if failed else "equal",
        detail=detail(
            record.tool,
            advisory=is_advisory,
            calls=series["calls"] if series["calls"] != count else None,
            refusal=series.get("refusal"),
        ),
    )
    return Reading(int(count), limit, finding)


def _literal(
    own: dict[str, Any], run: RunState, record: Record, outcome: ResultOutcome, policy: Policy
) -> Reading:
    values = policy.values
    threshold = values["outcome_ratio"]
    failed = outcome.status == ERROR
    masked = values["outcome_method"] == "literal_masked"
    # All texts together must be small in any script.
    size = min(_MAX_LITERAL_BYTES, _MAX_TEXTS_BYTES // values["window_calls"])
    if outcome.is_cut:
        # Of what was cut off, only a digest is known: such a text is similar to itself alone.
        text = outcome.keyer.digest(b"cut", encoded(outcome.raw))
    else:
        text = literal_result(normalise(outcome.raw, _ID_FIELDS) if masked else outcome.raw, size)
    texts = own.setdefault("texts", [])
    similar = [
        seq
        for seq, other_failed, other in texts
        if other_failed == failed and literal_result_similarity(text, other, threshold) > threshold
    ]
    texts.append([record.seq, failed, text])
    del texts[: -values["window_calls"]]
    count, limit = len(similar) + 1, values["outcome_max_results"] + run.allowance("outcome")
    if count < limit:
        return Reading(count, limit)
    seqs = tuple(sorted((*similar, record.seq)))  # results may arrive in another order than their calls
    finding = Finding(
        kind="outcome",
        count=count,
        limit=limit,
        window_calls=values["window_calls"],
        confidence=0.8,
        loop_id=loop_identity("outcome", (record.tool,)),
        call_keys=(record.key,),
        seqs=seqs,
        first_seq=seqs[0],
        results="errors" if failed else "equal",
        detail=detail(record.tool),
    )
    return Reading(count, limit, finding)
