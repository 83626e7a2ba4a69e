"""Nearly identical calls of one tool.

    search("reset password")  search("reset my password")  search("how to reset password") …

Counts calls of one tool whose arguments have at least the similarity `similar_ratio`, among the last
`similar_window_calls` calls. Arguments are compared field by field and word by word; numbers are compared as a whole,
so page 1 and page 2 differ, and so do the single words `foo` and `fo0`. The calls of one model response count once.
With `result_aware` on, only calls without a new result count.

Similarity alone is the weakest signal: paging, batches and reasonable retries look just like it. The default reaction
is a warning and nothing more.

- **False alarms:** batches of nearly identical work whose results happen to be identical.
- **Tuning:** turn it off for tools that process lists.
- **Cost:** proportional to the window, with comparisons of at most 192 characters. `similar_method = literal` compares
  the argument text itself by edit distance; up to 1,500 bytes per call are then stored in the session's state. Texts in
  longer arguments are compared by the pairs of words that they have in common, from beginning to end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import (
    POSSIBLE,
    QUIET,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
    evidence,
)
from detection.engine.field import choice, ladder, number, ratio, switch
from detection.engine.identity import digest_of_calls, parse
from detection.engine.memory import EMPTY, ERROR, OK, PENDING, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.similarity import literal_similarity, sketch_similarity

_VERBS = ("reset", "change", "renew", "recover", "restore", "replace", "revive", "refresh", "redo", "retry")


class Similar(BaseDetector):
    """Counts calls of one tool with similar arguments."""

    kind = "similar"
    label = "Similar calls"
    headline = "Nearly identical calls"
    unit = "similar calls"
    sentence = "*$tool* was called *$count times$span* with nearly identical arguments"
    recurrence = "*$tool* is called again with nearly identical arguments"
    message = "'$tool' was called $count times$among with nearly identical arguments"
    advice = "Small variations will not help: change the approach, or report what you have."
    presets = ("standard", "similarity")
    key_settings = ("similar_ladder", "similar_max_calls", "similar_ratio")
    limit_setting = "similar_max_calls"
    only_warns_fallible = True
    settings = (
        switch(
            "similar_enabled", False, "Detect similar calls",
            "Detect calls of one tool with nearly identical arguments.", weakens="off",
        ),
        # 0.8, the value of the system that `similarity` repeats, and 0.9 judge the 140 inspected runs alike.
        ratio(
            "similar_ratio", 0.85, "Similarity of arguments",
            "Calls whose arguments are at least this similar count as similar. With the method `sketch`, texts "
            "are compared word by word: two different words share nothing, however alike they are spelled.",
        ),
        # 5 and 7 judge the 140 inspected runs alike; a judgement: it only warns, and similar arguments alone are the
        # weakest signal.
        number(
            "similar_max_calls", 6, 2, 100, "Limit for similar calls",
            "Fires on the n-th similar call in the window.",
        ),
        # 11 and 13 judge the 140 inspected runs alike; a judgement: twice the limit, so that other calls may lie
        # between.
        number(
            "similar_window_calls", 12, 2, 40, "Window for similar calls",
            "Number of earlier calls to compare with.", weakens="down",
        ),
        choice(
            "similar_method", "sketch", ("sketch", "literal"), "Comparison of arguments",
            "Word sketches that hold no plain text, or the edit distance of the argument text, which is then stored "
            "in the session's state.",
        ),
        ladder("similar_ladder", "warn", "Reaction to similar calls"),
    )  # fmt: skip
    examples = {
        "similar": Example(
            "one search in ever new words, results already known",
            tuple(
                ExampleCall(
                    letter,
                    "search",
                    {"q": f"how do I {verb} a lost account password again today please"},
                    page,
                )
                for letter, verb, page in zip("ABCDEFGHIJ", _VERBS, ("page 1", "page 2") * 5, strict=True)
            ),
        ),
    }

    def on_call(
        self,
        own: dict[str, object],
        run: RunState,
        record: Record,
        call: ObservedCall,
        policy: PolicySettings,
    ) -> Reading:
        """Judge a call before it runs."""
        values = policy.values
        window, limit = values["similar_window_calls"], values["similar_max_calls"]
        limit += run.allowances.get("similar", 0)
        literal = values["similar_method"] == "literal"
        aware, tool = values["result_aware"] and not literal, record.tool
        # Most earlier calls had a new result.
        candidates = [
            other
            for other in run.records[-1 - window : -1]
            if other.tool == tool
            and not other.is_obsolete
            and not (aware and ((other.is_new and other.status == OK) or not _is_evidence(other, run)))
        ]
        if len(candidates) < limit - 1 or not record.sketch:
            return QUIET
        found = (
            _similar_by_text(record, candidates, policy)
            if literal
            else _similar_by_sketch(record, candidates, policy)
        )
        # Calls of one response cannot learn from each other.
        count = _rounds(found, record) if values["once_per_round"] else len(found) + 1
        if count < limit or (not literal and all(other.key == record.key for other in found)):
            return Reading(count, limit)
        calls = [*found, record]
        keys = tuple(dict.fromkeys(one.key for one in calls))
        finding = Finding(
            kind="similar",
            count=count,
            limit=limit,
            window_calls=window,
            confidence=POSSIBLE,
            calls_digest=digest_of_calls("similar", (record.tool,)),
            call_keys=keys,
            seqs=evidence(calls),
            first_seq=calls[0].seq,
            results="unknown" if not run.results else "errors" if found[-1].status == ERROR else "equal",
            detail=detail(record.tool),
        )
        return Reading(count, limit, finding)

    def memory_calls(self, values: Mapping[str, Any]) -> int:
        """Return how many calls a session must remember for these settings."""
        return values["similar_window_calls"] + 1 if values["similar_enabled"] else 0


def _rounds(found: list[Record], record: Record) -> int:
    """Count the rounds of these calls and the call in hand; calls without one are a round of their own."""
    rounds = {other.round or -other.ordinal for other in found}
    rounds.add(record.round or -record.ordinal)
    return len(rounds)


def _is_evidence(other: Record, run: RunState) -> bool:
    """Return whether an earlier call is evidence: it brought no new result, or its client reports no results."""
    status = other.status
    if status in (OK, EMPTY):
        return other.is_new is False
    return status != PENDING or not run.results


def _similar_by_sketch(record: Record, candidates: list[Record], policy: PolicySettings) -> list[Record]:
    ratio = policy.values["similar_ratio"]
    return [other for other in candidates if sketch_similarity(record.sketch, other.sketch, ratio) >= ratio]


def _similar_by_text(record: Record, candidates: list[Record], policy: PolicySettings) -> list[Record]:
    threshold = policy.values["similar_ratio"]
    mine = _parsed(record.sketch)
    return [
        other
        for other in candidates
        if literal_similarity(mine, _parsed(other.sketch), threshold) > threshold
    ]


def _parsed(text: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        return text  # a sketch, made before the method was changed
