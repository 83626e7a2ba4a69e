"""Calls of one tool that hardly differ.

    search("reset password")  search("reset my password")  search("how to reset password") …

Nearness alone is the weakest signal of all: paging, batches and honest retries look just like this. So it never goes
past a warning unless told to, it compares field by field (page 1 and page 2 are different values), and with
`result_aware` on it counts only calls that brought nothing new. `similar_method = literal` is the seed's formula on
the argument text, which then is kept in the state (cut to 1,500 characters a call). Texts are cut before they are
compared, so there is no time to box. Cost: O(window) comparisons of at most 192 characters.
"""

from __future__ import annotations

from typing import Any

from detection.engine.calls import Finding
from detection.engine.detectors.base import QUIET, Detector, Reading, detail, evidence
from detection.engine.identity import loop_identity, parse
from detection.engine.memory import EMPTY, ERROR, OK, PENDING, Lane, Record
from detection.engine.policy import Policy
from detection.engine.similarity import literal_similarity, sketch_similarity


class Similar(Detector):
    """Counts calls of one tool whose arguments are near those of the call in hand."""

    kind = "similar"
    switch = "similar_enabled"

    def on_call(self, own: dict[str, Any], lane: Lane, record: Record, policy: Policy) -> Reading:
        """Judge a call before it runs."""
        values = policy.values
        window, limit = values["similar_window_calls"], values["similar_max_calls"]
        limit += lane.allowance("similar")
        literal = values["similar_method"] == "literal"
        tool = record.tool
        candidates = [
            other
            for other in lane.records[-1 - window : -1]
            if other.tool == tool and not other.spent and (literal or _counts(other, lane, policy))
        ]
        # Fewer candidates than the limit needs: nothing to compare.
        if len(candidates) < limit - 1 or not record.sketch:
            return QUIET
        alike = (
            _literally_alike(record, candidates, policy) if literal else _alike(record, candidates, policy)
        )
        count = len(alike) + 1
        if count < limit or (not literal and all(other.key == record.key for other in alike)):
            return Reading(count, limit)
        calls = [*alike, record]
        keys = tuple(dict.fromkeys(one.key for one in calls))
        finding = Finding(
            kind="similar",
            count=count,
            limit=limit,
            window_calls=window,
            confidence=0.6,
            # The oldest call of the group names the loop, so that it keeps its name while the window moves on.
            loop_id=loop_identity("similar", (record.tool,)),
            call_keys=keys,
            seqs=evidence(calls),
            first_seq=calls[0].seq,
            results="unknown" if not lane.results else "errors" if alike[-1].status == ERROR else "equal",
            detail=detail(record.tool),
        )
        return Reading(count, limit, finding)


def _counts(other: Record, lane: Lane, policy: Policy) -> bool:
    """Whether an earlier call is evidence: it brought nothing new, or its client never tells."""
    if not policy.values["result_aware"]:
        return True
    if other.status == PENDING:
        return not lane.results
    if other.status == OK:
        return other.new is False
    return other.status != EMPTY or other.new is False


def _alike(record: Record, candidates: list[Record], policy: Policy) -> list[Record]:
    ratio = policy.values["similar_ratio"]
    return [other for other in candidates if sketch_similarity(record.sketch, other.sketch, ratio) >= ratio]


def _literally_alike(record: Record, candidates: list[Record], policy: Policy) -> list[Record]:
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
        return text
