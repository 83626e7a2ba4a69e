"""Different calls, one and the same answer.

    search("a") → 401   search("b") → 401   search("c") → 401   search("d") → 401

No comparison of calls can see this loop; the answers can. Per tool it counts equal answers in a row, whatever other
tools do in between, with clocks and ids masked and, in errors, the words of the call's own arguments subtracted: "denied
for ann" and "denied for bob" are one error. Calls that hardly differ besides need fewer. Empty answers and a bare "ok"
are no evidence. Another answer of the tool, a successful change elsewhere, or several new answers of other tools end a
series. It errs on honest sweeps that find nothing (hence: a shell is
nudged, never stopped). `outcome_method = literal` is the seed's formula over the answers of all tools. O(1) a call.
"""

from __future__ import annotations

from typing import Any

from detection.engine.calls import Finding
from detection.engine.detectors.base import QUIET, Detector, Reading, detail, evidence
from detection.engine.identity import loop_identity
from detection.engine.memory import ERROR, Lane, Record, bounded
from detection.engine.policy import Policy
from detection.engine.results import Outcome as Result
from detection.engine.results import normalise
from detection.engine.similarity import literal_result_similarity, sketch_similarity

_MAX_TOOLS = 8
# New answers from other tools after which a tool's old series says nothing about the run any more.
_FORGIVING_NEWS = 4
_NEAR = 0.7

# A series: fingerprint, count, is an error, first call, calls in a row that hardly differ, the lane's news, last sketch.
_MAX_LITERAL_BYTES = 1200
_MAX_TEXTS_BYTES = 12_000
# What `literal_masked` leaves out of JSON answers, whatever the tool.
_ID_FIELDS = frozenset(
    ("id", "message_id", "messageid", "uuid", "ts", "time", "date", "created_at", "sent_at", "duration")
)


class Outcome(Detector):
    """Counts equal answers per tool."""

    kind = "outcome"
    switch = "outcome_enabled"

    def on_call(self, own: dict[str, Any], lane: Lane, record: Record, policy: Policy) -> Reading:
        """A further call of a tool whose answers are stuck continues the loop."""
        if policy.values["outcome_method"] != "fingerprint":
            return QUIET
        series = own.get(record.tool)
        return _judge(series, lane, record, policy) if series else QUIET

    def on_result(
        self, own: dict[str, Any], lane: Lane, record: Record, outcome: Result, policy: Policy
    ) -> Reading:
        """Judge a call by its result."""
        if policy.values["outcome_method"] != "fingerprint":
            return _literal(own, lane, record, outcome, policy)
        if not outcome.evidence or policy.traits.tool_class == "poll":
            return QUIET
        series = own.pop(record.tool, None)
        if series is None or series[0] != record.result or lane.news - series[5] >= _FORGIVING_NEWS:
            series = [record.result, 0, record.status == ERROR, record.seq, 0, 0, None]
        # A slow repeat weighs a fifth, here as everywhere; an error never comes slowly enough.
        weight = 1 if record.status == ERROR else record.weight
        series[1] = _in_tenths(series[1] + weight)
        near = series[6] is not None and sketch_similarity(record.sketch, series[6], _NEAR) >= _NEAR
        series[4] = _in_tenths(series[4] + weight) if near else 1
        series[5], series[6] = lane.news, record.sketch
        own[record.tool] = series
        bounded(own, _MAX_TOOLS)
        return _judge(series, lane, record, policy)

    def on_change(self, own: dict[str, Any], lane: Lane, record: Record) -> None:
        """A successful change makes every tool worth another try."""
        for tool in [name for name in own if name != record.tool and name != "texts"]:
            del own[tool]

    def rearm(self, own: dict[str, Any], lane: Lane, keys: tuple[str, ...]) -> None:
        """Start counting answers anew."""
        own.clear()


def _in_tenths(count: float) -> float:
    """The count without the dust that adding fifths leaves; most counts are whole and need no rounding."""
    return count if count % 1 == 0 else round(count, 1)


def _judge(series: list[Any], lane: Lane, record: Record, policy: Policy) -> Reading:
    values = policy.values
    fingerprint, count, failed, first, near, _, _ = series
    allowance = lane.allowance("outcome")
    limit = values["outcome_max_errors" if failed else "outcome_max_results"] + allowance
    near_limit = values["outcome_max_similar"] + allowance
    if count < limit and near < near_limit:
        return Reading(int(count), limit)
    limit = min(limit, near_limit) if near >= near_limit else limit
    calls = [one for one in lane.records if one.tool == record.tool and one.result == fingerprint]
    keys = dict.fromkeys(one.key for one in calls)
    keys[record.key] = None
    finding = Finding(
        kind="outcome",
        count=int(count),
        limit=limit,
        confidence=0.9 if failed else 0.8,
        loop_id=loop_identity("outcome", (record.tool, fingerprint)),
        call_keys=tuple(keys),
        seqs=evidence(calls),
        first_seq=first,
        results="errors" if failed else "equal",
        detail=detail(record.tool),
    )
    return Reading(int(count), limit, finding)


def _literal(own: dict[str, Any], lane: Lane, record: Record, outcome: Result, policy: Policy) -> Reading:
    values = policy.values
    threshold = values["outcome_ratio"]
    failed = outcome.status == ERROR
    masked = values["outcome_method"] == "literal_masked"
    text = (normalise(outcome.raw, _ID_FIELDS) if masked else outcome.raw)[:_MAX_LITERAL_BYTES]
    # Kept in the state, so it must be valid text, and all of them together small in any script.
    size = min(_MAX_LITERAL_BYTES, _MAX_TEXTS_BYTES // values["window_calls"])
    text = text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
    texts = own.setdefault("texts", [])
    alike = [
        seq
        for seq, other_failed, other in texts
        if other_failed == failed and literal_result_similarity(text, other, threshold) > threshold
    ]
    texts.append([record.seq, failed, text])
    del texts[: -values["window_calls"]]
    count, limit = len(alike) + 1, values["outcome_max_results"] + lane.allowance("outcome")
    if count < limit:
        return Reading(count, limit)
    seqs = tuple(sorted((*alike, record.seq)))  # results may come in another order than their calls
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
