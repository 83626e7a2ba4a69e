"""Twin of `outcome`."""

from __future__ import annotations

from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import READERS, History, Past
from tests.engine.twins.similarity import alike, edit_similarity, shared

_NEAR = 0.7
_HALF = 0.5
_NEW_RESULTS_THAT_END_A_SERIES = 4


def outcome(run: History, policy: Policy) -> Expected | None:
    """Read the answers of the current call's tool backwards until something ends the series."""
    current = run.current
    if current is None or (
        run.is_after_result and policy.get("outcome_method") == "fingerprint" and not current.evidence
    ):
        return None
    if policy.get("outcome_method") == "literal":
        return _literal(run, policy) if run.is_after_result else None
    series = _series(run, policy)
    if not series or (current.kind_of_tool == "poll" and series[-1].status != "error"):
        return None
    # Of results of one round that follow each other, the first counts.
    counted = [
        one
        for place, one in enumerate(series)
        if not (place and one.round is not None and series[place - 1].round == one.round)
    ]
    count = sum(_weight(one) for one in counted) + 1e-9
    failed = series[-1].status == "error"
    limit = policy.get("outcome_max_errors" if failed else "outcome_max_results")
    near_limit = policy.get("outcome_max_similar")
    near = 1 + 1e-9
    for later, earlier in zip(series[::-1], series[-2::-1], strict=False):
        if later not in counted:
            continue
        if alike(later.arguments, earlier.arguments, _NEAR) < _NEAR:
            break
        near += _weight(later)
    if count < limit and near < near_limit:
        refused = _refused(run, series, counted) if failed and current.kind_of_tool == "change" else 0
        refusals = policy.get("outcome_max_refusals")
        if not refusals or refused < refusals:
            return None
        return Expected("outcome", refused, refusals, "errors", advisory=True)
    if near >= near_limit:
        limit = min(limit, near_limit)
    # Different searches that all find nothing may be an honest sweep.
    is_sweep = near < near_limit and current.tool in READERS and series[0].text.startswith("No results")
    words = "errors" if failed else "equal"
    return Expected(
        "outcome", int(count), limit, words, advisory=is_sweep or _is_one_call(run, series, policy)
    )


def _is_one_call(run: History, series: list[Past], policy: Policy) -> bool:
    """Whether the results are those of one call only, other calls in between: a scattered repeat."""
    remembered = run.past[-policy.memory_calls :]
    keys = {one.key for one in remembered if one.tool == run.current.tool and one.answer == series[0].answer}
    return not policy.reads_plainly and len(keys | {run.current.key}) == 1


def _refused(run: History, series: list[Past], counted: list[Past]) -> int:
    """Errors for arguments of which at least half stay the same; 0 unless the user spoke after the first of them."""
    count, first = 1, series[0]
    for later, earlier in zip(series[::-1], series[-2::-1], strict=False):
        if later not in counted:
            continue
        if (
            alike(later.arguments, earlier.arguments, _NEAR) < _NEAR
            and shared(later.arguments, earlier.arguments) < _HALF
        ):
            first = later
            break
        count += 1
    return count if any(spoken > (first.result_place or 0) for spoken in run.messages) else 0


def _weight(one: Past) -> float:
    """Slow repeats weigh a fifth, and a bare value for a new call half; errors always count in full."""
    return 1.0 if one.status == "error" else one.weight * (0.5 if one.value else 1)


def _series(run: History, policy: Policy) -> list[Past]:
    # A poll is expected to return the same, but not to fail.
    answers = [
        one
        for one in run.answers()
        if one.tool == run.current.tool
        and one.evidence
        and (one.kind_of_tool != "poll" or not policy.reads_plainly)
    ]
    changes = [one.result_place for one in run.answers() if one.changed and one.tool != run.current.tool]
    series: list[Past] = []
    for one in reversed(answers):
        if series:
            later = series[0]
            overtaken = any(one.result_place < change < later.result_place for change in changes)
            forgiven = (
                run.new_results(later.result_place) - run.new_results(one.result_place)
                >= _NEW_RESULTS_THAT_END_A_SERIES
            )
            spoken = one.status != "error" and any(
                one.result_place < message < later.result_place for message in run.messages
            )
            if one.answer != later.answer or overtaken or forgiven or spoken:
                break
        series.insert(0, one)
    if series and series[-1].status != "error" and any(m > series[-1].result_place for m in run.messages):
        return []
    # What has changed since the last answer ends the series as well.
    return [] if series and any(change > series[-1].result_place for change in changes) else series


def _literal(run: History, policy: Policy) -> Expected | None:
    """The last answers of all tools, by edit distance on their text, errors and others apart."""
    current, limit, threshold = run.current, policy.get("outcome_max_results"), policy.get("outcome_ratio")
    earlier = run.answers()[:-1][-policy.get("window_calls") :]
    count = 1 + sum(
        1
        for one in earlier
        if (one.status == "error") == (current.status == "error")
        and edit_similarity(one.text, current.text) > threshold
    )
    results = "errors" if current.status == "error" else "equal"
    return Expected("outcome", count, limit, results) if count >= limit else None
