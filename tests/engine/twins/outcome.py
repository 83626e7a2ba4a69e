"""Twin of `outcome`."""

from __future__ import annotations

from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import History, Past
from tests.engine.twins.similarity import alike, edit_similarity

_NEAR = 0.7
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
    series = _series(run)
    if not series or current.kind_of_tool == "poll":
        return None
    count = sum(_weight(one) for one in series) + 1e-9
    failed = series[-1].status == "error"
    limit = policy.get("outcome_max_errors" if failed else "outcome_max_results")
    near_limit = policy.get("outcome_max_similar")
    near = 1 + 1e-9
    for later, earlier in zip(series[::-1], series[-2::-1], strict=False):
        if alike(later.arguments, earlier.arguments, _NEAR) < _NEAR:
            break
        near += _weight(later)
    if count < limit and near < near_limit:
        return None
    if near >= near_limit:
        limit = min(limit, near_limit)
    return Expected("outcome", int(count), limit, "errors" if failed else "equal")


def _weight(one: Past) -> float:
    """Slow repeats weigh a fifth, errors always count in full."""
    return 1.0 if one.status == "error" else one.weight


def _series(run: History) -> list[Past]:
    answers = [one for one in run.answers() if one.tool == run.current.tool and one.evidence]
    changes = [
        one.result_place
        for one in run.answers()
        if one.kind_of_tool == "change" and one.status != "error" and one.new and one.tool != run.current.tool
    ]
    series: list[Past] = []
    for one in reversed(answers):
        if series:
            later = series[0]
            overtaken = any(one.result_place < change < later.result_place for change in changes)
            forgiven = (
                run.new_results(later.result_place) - run.new_results(one.result_place)
                >= _NEW_RESULTS_THAT_END_A_SERIES
            )
            if one.answer != later.answer or overtaken or forgiven:
                break
        series.insert(0, one)
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
