"""Different calls with the same result.

    search("a") → 401   search("b") → 401   search("c") → 401   search("d") → 401

Comparing calls cannot detect this loop; comparing results can. Counts identical results of one tool in a row, whatever
other tools do in between. Times and ids are masked. In errors, numbers of lines and columns and the words of the call's
own arguments are masked too: "denied for ann" and "denied for bob" are one error, and so is the one about two paths.
Fires at `outcome_max_errors` identical errors, at `outcome_max_results` identical results, or at `outcome_max_similar`
where the arguments hardly differ either. Advises at `outcome_max_refusals` identical errors of a tool that writes, if
at least half of its arguments stay the same and the user has spoken in between: asking the user did not help. Empty
results, a bare "ok", the placeholder of a picture, receipts of writes and those of clicks and the like do not count; a
bare number or Boolean (`false`, `[(0,)]`), or up to three short values, counts half, because many calls have it in
common. The results of one model response count once, until two responses have met the same error. A different result of
the tool, a successful change elsewhere, or several new results of other tools end the series, and the receipt of a
success ends one of errors; what a shell only looks at neither ends nor continues the series of what it runs. A message
of the user ends a series without errors, and one of errors where the next call of a tool that reads is new: the person
has corrected something. What the host refuses to run is one series, whichever tools are called, and escalates for a
shell, too: the command never ran. Where the person rejects a call, says something, and rejects another one, the series
begins again. One error of several tools, such as those of a server that is not connected, is one series as well and
fires at `outcome_max_results`. One and the same call with other work in between is a scattered repeat and only advised
against; it is left to `repeat` below `max_repeats`.

- **False alarms:** legitimate sweeps that find nothing, and batches with one verdict. Different calls that share one
  object of short values are warned about and never blocked, as are searches, and tools of the class `fallible`.
- **Misses:** short series of "nothing found" in different words.
- **Tuning:** raise `outcome_max_errors` for tools that fail in the course of normal work, or declare them `fallible`;
  list ids in results under `volatile_result_fields`.
- **Cost:** constant per call. `outcome_method = literal` compares the text of the last `window_calls` results of all
  tools and stores it in the session's state, at most 1,200 bytes each: texts in longer results are compared by the
  pairs of words that they have in common, from beginning to end.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from detection.engine.bounded import drop_oldest
from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import (
    LIKELY,
    QUIET,
    SURE,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
    evidence,
    forget_all,
    is_within_repeats,
)
from detection.engine.field import choice, ladder, number, ratio, switch
from detection.engine.identity import digest_of_calls, encoded
from detection.engine.memory import ERROR, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome, normalise
from detection.engine.results.answers import MAX_SHORT_CHARS
from detection.engine.similarity import (
    literal_result,
    literal_result_similarity,
    shared_fields,
    sketch_similarity,
)

# Tools with a series at a time; a judgement: the oldest is forgotten, so that the state stays below 32 KiB.
_MAX_TOOLS = 8
# The series of what the host refuses; no tool has this name.
_HOST = ""
# What a shell only looks at is a series of its own.
_LOOKS = "\0looks"
# New results of other tools that end a tool's series; a judgement: 2 and 8 give the same figures on the 476 inspected
# runs of dev to dev4.
_NEW_RESULTS_THAT_END_A_SERIES = 4
# Who calls a tool in a round after that many with one error knew of it, so that all calls of the round count.
_ROUNDS_THAT_TELL = 2
# Share of words that similar arguments have in common; a judgement: 0.5 and 0.9 give the same figures on the 476
# inspected runs of dev to dev4.
_SIMILAR_ARGUMENTS = 0.7
# Half of the fields of a rejected write must stay the same; a judgement, not measured. Without the rule, 3 of 13 loops
# of dev3 are missed.
_HALF = 0.5
# A judgement, because many calls have a bare number or Boolean in common: 0.25 and 1 give the same figures on the 476
# inspected runs of dev to dev4.
_VALUE = 0.5
# Hexadecimal digits kept of the digest of a text: 64 bits, as of a result.
_TEXT_CHARACTERS = 16
# Text of one result that `literal` keeps; all together fit into the state of 32 KiB.
_MAX_LITERAL_BYTES = 1200
# Texts of a window of ten, the window of `similarity`, at their full length.
_MAX_TEXTS_BYTES = 12_000
# Fields that `literal_masked` removes from JSON results, whatever the tool.
_ID_FIELDS = frozenset(
    ("id", "message_id", "messageid", "uuid", "ts", "time", "date", "created_at", "sent_at", "duration")
)


class OutcomeSeries(TypedDict):
    """Identical results of one tool, or of several with one error.

    What is not required is absent where it is not so; `text`, `spoken` and `asked` are of errors alone.
    """

    result: str
    calls: int
    count: float
    similar: float
    first: int
    sketch: str | None
    round: int
    new_results: int
    failed: bool
    last: NotRequired[str]
    text: NotRequired[str]
    members: NotRequired[list[str]]
    refused: NotRequired[int]
    spoken: NotRequired[bool]
    asked: NotRequired[bool]
    found_nothing: NotRequired[bool]
    refusal: NotRequired[bool]
    rejected: NotRequired[bool]
    phrase: NotRequired[bool]


class OutcomeState(TypedDict, total=False):
    """What the detector remembers: series by name, and texts as number of the call, whether it failed, and the text."""

    series: dict[str, OutcomeSeries]
    texts: list[list[Any]]


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
    further_limits = ("outcome_max_errors", "outcome_max_similar", "outcome_max_refusals")
    only_warns_fallible = True
    describes_results = False
    counts_results = True
    settings = (
        switch(
            "outcome_enabled", False, "Detect identical results",
            "Detect different calls of one tool that return the same result.", weakens="off",
        ),
        # 4, 5 and 7 judge the 140 inspected runs alike; 3 has two more false alarms and finds no further loop.
        number(
            "outcome_max_results", 6, 2, 1000, "Limit for identical results",
            "Fires on the n-th identical result of one tool in a row, whatever the arguments.", unit="results",
        ),
        # On the 140 inspected runs, 3 has one more false alarm and finds no further loop; 5 changes nothing.
        number(
            "outcome_max_errors", 4, 2, 1000, "Limit for identical errors",
            "Fires on the n-th identical error of one tool in a row, whatever the arguments.", unit="errors",
        ),
        # On the 140 inspected runs, 3 has one more false alarm and finds no further loop; 5 changes nothing.
        number(
            "outcome_max_similar", 4, 2, 1000, "Limit for identical results of similar calls",
            "Fires on the n-th call in a row with similar arguments and an identical result.",
        ),
        # Turned off, 3 of the 13 loops of dev3 are missed; smaller and larger values were not measured.
        number(
            "outcome_max_refusals", 3, 0, 1000, "Limit for rejected writes",
            "Warns on the n-th identical error of a tool that writes, "
            "if at least half of the arguments are the same and "
            "the user spoke in between. 0 turns this off.", unit="errors",
        ),
        # As the system that `similarity` repeats; `standard` compares fingerprints and does not use it.
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
        self, own: OutcomeState, run: RunState, record: Record, call: ObservedCall, policy: PolicySettings
    ) -> Reading:
        """Continue the loop on a further call of a tool that keeps returning the same result."""
        known = own.get("series")
        if not known or policy.values["outcome_method"] != "fingerprint":
            return QUIET
        name = _name_of(record, policy)
        series = known.get(name)
        if series is None:
            for other, shared in known.items():
                if "members" in shared and name in shared["members"]:
                    name, series = other, shared
                    break
        if series is None or ("asked" in series and _is_asked_anew(series, run, record, policy)):
            return QUIET
        if policy.traits.tool_class == "poll" and not series["failed"]:
            return QUIET
        return _judge(name, series, run, record, policy)

    def on_result(
        self,
        own: OutcomeState,
        run: RunState,
        record: Record,
        outcome: ResultOutcome,
        policy: PolicySettings,
    ) -> Reading:
        """Judge a call by its result."""
        values, failed, known = policy.values, record.status == ERROR, own.setdefault("series", {})
        if values["outcome_method"] != "fingerprint":
            return _literal(own, run, record, outcome, policy)
        if not outcome.is_evidence or (outcome.trouble and values["outage_enabled"]):
            if outcome.is_receipt and not outcome.is_plain:
                _end_series_of(known, _name_of(record, policy), only_failed=True)
            return QUIET
        if policy.traits.tool_class == "poll" and (outcome.is_plain or not failed):
            # A poll is expected to return the same, but not to fail.
            if not outcome.is_plain:
                _end_series_of(known, record.tool)
            return QUIET
        # It is the host that refuses, whichever tool is called.
        mine = _HOST if outcome.is_refused else _name_of(record, policy)
        text = _text_of(outcome, record)
        name = _continued(known, mine, run, record, text, policy)
        series = known.pop(name) if name is not None else None
        if mine != _HOST:
            _end_series_of(known, mine)
        if name is None or series is None:
            name, series = mine, _begun(run, record, outcome, text, policy)
        else:
            _add(series, run, record, outcome, text, policy)
        if name == _HOST or name != mine:
            members = [one for one in series.get("members", (name,)) if one not in (mine, _HOST)]
            series["members"] = [*members, _name_of(record, policy)][-_MAX_TOOLS:]
        known[name] = series
        if len(known) > _MAX_TOOLS:
            drop_oldest(known, _MAX_TOOLS)
        return _judge(name, series, run, record, policy)

    def on_message(self, own: OutcomeState) -> None:
        """Reset successful results: after a user message, reading again is normal."""
        for name, series in [*own.get("series", {}).items()]:
            if series["failed"]:
                series["spoken"] = series["asked"] = True
            else:
                del own["series"][name]

    def on_change(self, own: OutcomeState, run: RunState, record: Record) -> None:
        """Reset other tools: after a change it makes sense to try them again."""
        own["series"] = {
            name: series
            for name, series in own.get("series", {}).items()
            if name == _HOST
            or (name == record.tool and record.effect != "command" and "members" not in series)
        }

    def reset(self, own: OutcomeState, run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting results again from zero."""
        forget_all(own)


def _name_of(record: Record, policy: PolicySettings) -> str:
    """Return the name of the series of a call's own tool: to look around does not answer what a shell runs."""
    looks = record.effect in ("look", "search") and not policy.reads_plainly
    return record.tool + _LOOKS if looks else record.tool


def _continued(
    known: dict[str, OutcomeSeries],
    mine: str,
    run: RunState,
    record: Record,
    text: str,
    policy: PolicySettings,
) -> str | None:
    """Return the name of the series that a result continues: its own, or that of an error of other tools."""
    series = known.get(mine)
    if series is not None and _goes_on(series, run, record, text, policy):
        return mine
    if record.status != ERROR or mine == _HOST or policy.reads_plainly:
        return None
    for name, series in known.items():
        if name in (mine, _HOST) or not series["failed"]:
            continue
        if _goes_on(series, run, record, text, policy):
            return name
    return None


def _goes_on(series: OutcomeSeries, run: RunState, record: Record, text: str, policy: PolicySettings) -> bool:
    """Return whether a result continues a series: one error has one cause or, whatever its call says, one text."""
    is_same = series.get("last", series["result"]) == record.result or (text and series.get("text") == text)
    if not is_same:
        return False
    if run.new_results - series["new_results"] >= _NEW_RESULTS_THAT_END_A_SERIES:
        return False
    return "asked" not in series or not _is_asked_anew(series, run, record, policy)


def _text_of(outcome: ResultOutcome, record: Record) -> str:
    """Return a fingerprint of a result as received: one call may name what is in it, and the next one not.

    None of a long one that is no error, and of one that says something else in each directory.
    """
    if outcome.is_plain:
        return ""
    if outcome.status != ERROR and (record.place or len(outcome.raw) > MAX_SHORT_CHARS):
        return ""
    return outcome.keyer.digest(b"text", encoded(outcome.raw))[:_TEXT_CHARACTERS]


def _end_series_of(known: dict[str, OutcomeSeries], mine: str, *, only_failed: bool = False) -> None:
    """Forget each series to which a tool belongs, because it now returns something else.

    A receipt says nothing about other receipts, but it ends a series of errors.
    """
    for name, series in [*known.items()]:
        is_mine = name == mine or ("members" in series and name != _HOST and mine in series["members"])
        if is_mine and (series["failed"] or not only_failed):
            del known[name]


def _is_asked_anew(series: OutcomeSeries, run: RunState, record: Record, policy: PolicySettings) -> bool:
    """Return whether a person has spoken since the last error, and what is now tried answers that.

    "User not found" for what the person corrects step by step is no loop where something is looked up for the first
    time, and neither are plans that the person rejects one after another where the next one differs from the last.
    """
    if policy.reads_plainly:
        return False
    if "rejected" in series:
        last = series.get("last", series["result"])
        before = (one for one in reversed(run.records) if one is not record and one.result == last)
        return next((one.key != record.key for one in before), False)
    return (
        policy.traits.reads
        and "refusal" not in series
        and not any(one.key == record.key and one is not record for one in run.records)
    )


def _begun(
    run: RunState, record: Record, outcome: ResultOutcome, text: str, policy: PolicySettings
) -> OutcomeSeries:
    """Return a series that a result begins."""
    series: OutcomeSeries = {
        "result": record.result, "calls": 1, "count": _weight(record, outcome), "similar": 1,
        "first": record.seq, "sketch": record.sketch, "round": record.round, "new_results": run.new_results,
        "failed": record.status == ERROR,
    }  # fmt: skip
    if text:
        series["text"] = text
    if record.effect == "write":
        series["refused"], series["spoken"] = 1, False
    if policy.values["result_aware"] and policy.traits.reads and outcome.finds_nothing:
        series["found_nothing"] = True
    if outcome.is_refused:
        series["refusal"] = True
    if outcome.is_rejected:
        series["rejected"] = True
    if outcome.is_phrase or outcome.is_value or outcome.is_record:
        series["phrase"] = True
    return series


def _add(
    series: OutcomeSeries,
    run: RunState,
    record: Record,
    outcome: ResultOutcome,
    text: str,
    policy: PolicySettings,
) -> None:
    """Add a result to the series that it continues."""
    series["calls"] += 1
    series.pop("asked", None)
    in_round = policy.values["once_per_round"] and record.round and record.round == series["round"]
    failed = record.status == ERROR
    if not in_round or (failed and series["count"] > _ROUNDS_THAT_TELL and not policy.reads_plainly):
        weight = _weight(record, outcome)
        series["count"] = _in_tenths(series["count"] + weight)
        is_similar = (
            series["sketch"] is not None
            and sketch_similarity(record.sketch, series["sketch"], _SIMILAR_ARGUMENTS) >= _SIMILAR_ARGUMENTS
        )
        series["similar"] = _in_tenths(series["similar"] + weight) if is_similar else 1
        if record.effect == "write":
            resembles = is_similar or (
                series["sketch"] is not None and shared_fields(record.sketch, series["sketch"]) >= _HALF
            )
            series["refused"] = series.get("refused", 0) + 1 if resembles else 1
            if not resembles:
                series["spoken"] = False
    series["round"], series["failed"] = record.round, failed
    series["new_results"], series["sketch"] = run.new_results, record.sketch
    if text:
        series["last"], series["text"] = record.result, text


def _weight(record: Record, outcome: ResultOutcome) -> float:
    """Return what a result counts: a slow identical call a fifth, unless it failed."""
    return 1 if record.status == ERROR else record.weight * (_VALUE if outcome.is_value else 1)


def _in_tenths(count: float) -> float:
    """Return a sum of fifths without its rounding error."""
    return count if type(count) is int or count % 1 == 0 else round(count, 1)


def _judge(
    name: str, series: OutcomeSeries, run: RunState, record: Record, policy: PolicySettings
) -> Reading:
    values = policy.values
    count, failed, result = series["count"], series["failed"], series["result"]
    allowance = run.allowances.get("outcome", 0)
    limit_name, similar_limit = "outcome_max_results", values["outcome_max_similar"] + allowance
    limit = values[limit_name] + allowance
    if not failed and count < limit and series["similar"] < similar_limit:
        return Reading(int(count), limit)
    is_refusal = "refusal" in series
    is_shared = is_refusal or ("members" in series and _is_of_several(series["members"]))
    # Different tools may well share the words of an error, such as "user not found".
    if failed and (is_refusal or not is_shared):
        limit_name = "outcome_max_errors"
        limit = values[limit_name] + allowance
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
    is_advisory = is_advisory or series.get("phrase", False)
    results = (result, series.get("last", result))
    calls = [one for one in run.records if one.result in results and (is_shared or one.tool == record.tool)]
    keys = dict.fromkeys(one.key for one in calls)
    keys[record.key] = None
    if len(keys) == 1 and not policy.reads_plainly:
        if policy.traits.steps and not failed:
            return Reading(int(count), limit)
        if is_within_repeats(count, record.key, run, policy, limit_name):
            return Reading(int(count), limit)
        # One and the same call with other work in between is a scattered repeat, which is never blocked.
        is_advisory = True
    finding = Finding(
        kind="outcome",
        count=int(count),
        limit=limit,
        confidence=SURE if failed else LIKELY,
        calls_digest=digest_of_calls("outcome", (name, result)),
        call_keys=tuple(keys),
        seqs=evidence(calls),
        first_seq=series["first"],
        results="errors" if failed else "equal",
        detail=detail(
            record.tool,
            advisory=is_advisory,
            calls=series["calls"] if series["calls"] != count else 0,
            refusal=is_refusal,
        ),
    )
    return Reading(int(count), limit, finding)


def _is_of_several(members: list[str]) -> bool:
    """Return whether several tools belong to a series; what a shell looks at and what it runs are one."""
    return len({one.removesuffix(_LOOKS) for one in members}) > 1


def _literal(
    own: OutcomeState, run: RunState, record: Record, outcome: ResultOutcome, policy: PolicySettings
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
    count, limit = len(similar) + 1, values["outcome_max_results"] + run.allowances.get("outcome", 0)
    if count < limit:
        return Reading(count, limit)
    seqs = tuple(sorted((*similar, record.seq)))  # results may arrive in another order than their calls
    finding = Finding(
        kind="outcome",
        count=count,
        limit=limit,
        window_calls=values["window_calls"],
        confidence=LIKELY,
        calls_digest=digest_of_calls("outcome", (record.tool,)),
        call_keys=(record.key,),
        seqs=seqs,
        first_seq=seqs[0],
        results="errors" if failed else "equal",
        detail=detail(record.tool),
    )
    return Reading(count, limit, finding)
