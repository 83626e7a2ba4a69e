"""Twin of `stagnation`."""

from __future__ import annotations

from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import READERS, History, Past
from tests.engine.twins.similarity import shared

_HALF = 0.5
_SAYS_OR_WRITES = ("change", "message")


def stagnation(run: History, policy: Policy) -> Expected | None:
    """Count the results since the last new one, or searches that found nothing."""
    return _without_news(run, policy) or _searches(run, policy)


def _searches(run: History, policy: Policy) -> Expected | None:
    """Count searches of one tool in a row that found nothing, each for something else."""
    current, limit = run.current, policy.get("stagnation_max_empty")
    if current is None or not limit or not run.is_after_result:
        return None
    sweep: list[Past] = []
    last_round, before, counted = None, -1, False
    for one in run.answers():
        place = one.result_place or 0
        spoken = any(before < message < place for message in run.messages)
        before, counted = place, False
        if spoken or one.changed:
            sweep = []
        if one.status == "error":
            continue
        if one.tool not in READERS or not (one.status == "empty" or one.text.startswith("No results")):
            sweep = []
            continue
        if sweep and sweep[0].tool != one.tool:
            sweep = []
        if not sweep:
            last_round = None
        is_variant = sweep and shared(one.arguments, sweep[-1].arguments) > _HALF
        is_parallel = one.round is not None and one.round == last_round
        if is_variant or is_parallel or any(other.key == one.key for other in sweep):
            continue
        sweep.append(one)
        last_round, counted = one.round, True
    if not counted or run.answers()[-1] is not current or len(sweep) < limit:
        return None
    return Expected("stagnation", len(sweep), limit, "empty", len(sweep), advisory=True)


def _without_news(run: History, policy: Policy) -> Expected | None:
    current, limit = run.current, policy.get("stagnation_max_calls")
    if current is None:
        return None
    answers = run.answers()
    if not answers:
        return _by_keys(run, 2 * limit)
    idle = _idle(run, answers, policy)
    if run.is_after_result and current not in idle:
        return None
    count = sum(max(_weight(one) for one in together) for together in _rounds(idle))
    if not run.is_after_result and _is_new(current, idle):
        since = max((one.result_place or 0 for one in idle), default=0)
        judged = [one for one in run.past[:-1] if one.place > since and _is_new(one, idle)]
        is_first = not any(one.kind_of_tool not in _SAYS_OR_WRITES for one in judged)
        if count + 1e-9 < 4 * limit or current.kind_of_tool in _SAYS_OR_WRITES or not is_first:
            return None
    if count + 1e-9 < limit:
        return None
    results = "errors" if current.status == "error" else "equal"
    return Expected("stagnation", int(count + 0.5), limit, results, min(12, len({one.key for one in idle})))


def _is_new(call: Past, idle: list[Past]) -> bool:
    """Whether a call is none of those that brought nothing."""
    return call.key not in list(dict.fromkeys(one.key for one in idle))[-12:]


def _idle(run: History, answers: list[Past], policy: Policy) -> list[Past]:
    """Return the results since the last new one, without those that neither count nor reset."""
    idle: list[Past] = []
    fresh_round: str | None = None
    before = -1
    for one in answers:
        place = one.result_place or 0
        if any(before < spoken < place for spoken in run.messages):
            idle, fresh_round = [], None
        before = place
        if one.status != "error" and one.new:
            if one.changed:
                idle, fresh_round = [], None
            if one.evidence:
                idle, fresh_round = [], one.round
        elif one.value or (one.status != "error" and run.first_since_change(one, policy.memory_calls)):
            continue
        elif one.round is None or one.round != fresh_round:
            idle.append(one)
    return [] if any(spoken > before for spoken in run.messages) else idle


def _rounds(idle: list[Past]) -> list[list[Past]]:
    """Group results of one round that follow each other."""
    groups: list[list[Past]] = []
    for one in idle:
        if groups and one.round is not None and groups[-1][-1].round == one.round:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _weight(one: Past) -> float:
    if one.status != "error":
        return one.weight * 0.25 if one.kind_of_tool == "poll" else one.weight
    return 0.6 if one.new else 1.0


def _by_keys(run: History, limit: int) -> Expected | None:
    """Nobody answers: calls since the last one that was never made before."""
    idle: list[Past] = []
    keys = set()
    before = -1
    for one in run.past:
        if any(before < spoken < one.place for spoken in run.messages):
            idle = []
        before = one.place
        if one.key in keys:
            idle.append(one)
        else:
            idle = []
            keys.add(one.key)
    count = sum(one.weight for one in idle)  # without results every call counts, also those of one round
    if not idle or count + 1e-9 < limit:
        return None
    return Expected("stagnation", int(count + 0.5), limit, "unknown", min(12, len({one.key for one in idle})))
