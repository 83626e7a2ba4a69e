"""Twin of `similar`."""

from __future__ import annotations

from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import History, Past
from tests.engine.twins.similarity import alike, literally_alike


def similar(run: History, policy: Policy) -> Expected | None:
    """Compare the call in hand with every call of its tool in the window."""
    current = run.current
    if current is None or run.is_after_result:
        return None
    limit, ratio = policy.get("similar_max_calls"), policy.get("similar_ratio")
    literal = policy.get("similar_method") == "literal"
    nobody_answers = not run.answers()
    near = []
    for one in run.past[:-1][-policy.get("similar_window_calls") :]:
        if one.tool != current.tool or not one.live(run.now):
            continue
        if literal:
            if literally_alike(current.arguments, one.arguments, ratio) > ratio:
                near.append(one)
        elif _idle(one, nobody_answers, policy) and alike(current.arguments, one.arguments, ratio) >= ratio:
            near.append(one)
    if policy.get("once_per_round"):
        count = len({one.round or one.place for one in (*near, current)})
    else:
        count = len(near) + 1
    if count < limit or (not literal and all(one.key == current.key for one in near)):
        return None
    results = "unknown" if nobody_answers else "errors" if near[-1].status == "error" else "equal"
    return Expected("similar", count, limit, results)


def _idle(one: Past, nobody_answers: bool, policy: Policy) -> bool:
    """A call that brought nothing new, or of which nobody will ever know."""
    if not policy.get("result_aware"):
        return True
    if one.status == "pending":
        return nobody_answers
    return one.status == "error" or not one.new
