"""Twin of `outcome`."""

from __future__ import annotations

from dataclasses import dataclass

from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import READERS, History, Past
from tests.engine.twins.similarity import alike, edit_similarity, shared

_NEAR = 0.7
_HALF = 0.5
_NEW_RESULTS_THAT_END_A_SERIES = 4
_ROUNDS_THAT_TELL = 2


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
    if not run.is_after_result and _is_asked_anew(run, current, series[-1]):
        return None
    counted = _counted(series)
    count = sum(_weight(one) for one in counted) + 1e-9
    failed = series[-1].status == "error"
    is_of_one_tool = len({one.tool for one in series}) == 1
    limit = policy.get("outcome_max_errors" if failed and is_of_one_tool else "outcome_max_results")
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


def _counted(series: list[Past]) -> list[Past]:
    """Of results of one round that follow each other, the first counts, until two rounds have told of an error."""
    counted: list[Past] = []
    for place, one in enumerate(series):
        is_new_round = not place or one.round is None or series[place - 1].round != one.round
        if is_new_round or (one.status == "error" and sum(map(_weight, counted)) > _ROUNDS_THAT_TELL + 1e-9):
            counted.append(one)
    return counted


def _is_one_call(run: History, series: list[Past], policy: Policy) -> bool:
    """Whether the results are those of one call only, other calls in between: a scattered repeat."""
    remembered = run.past[-policy.memory_calls :]
    tools, answers = {one.tool for one in series}, {series[0].answer, series[-1].answer}
    tools = tools if len(tools) > 1 else {run.current.tool}
    keys = {one.key for one in remembered if one.tool in tools and one.answer in answers}
    return not policy.reads_plainly and len(keys | {run.current.key}) == 1


def _refused(run: History, series: list[Past], counted: list[Past]) -> int:
    """Errors of writes whose arguments stay the same by at least half; 0 unless the user spoke after the first."""
    count, first = 0, series[0]
    for place in range(len(series) - 1, -1, -1):
        one = series[place]
        if one not in counted or one.kind_of_tool != "change":
            continue
        count += 1
        before = series[place - 1] if place else None
        if (
            before is not None
            and alike(one.arguments, before.arguments, _NEAR) < _NEAR
            and shared(one.arguments, before.arguments) < _HALF
        ):
            first = one
            break
    return count if any(spoken > (first.result_place or 0) for spoken in run.messages) else 0


def _weight(one: Past) -> float:
    """Slow repeats weigh a fifth, and a bare value for a new call half; errors always count in full."""
    return 1.0 if one.status == "error" else one.weight * (0.5 if one.value else 1)


@dataclass
class _Series:
    """Answers that are one by what they say, of one tool or of several."""

    owner: str
    answers: list[Past]
    members: set[str]


def _series(run: History, policy: Policy) -> list[Past]:
    """Read the run from its beginning: which series the tool in hand belongs to at its end."""
    found: list[_Series] = []
    moments = [(one.result_place or 0, one) for one in run.answers()] + [
        (place, None) for place in run.messages
    ]
    for place, one in sorted(moments, key=lambda moment: moment[0]):
        if one is None:
            found = [series for series in found if series.answers[-1].status == "error"]
            continue
        mine = _name(one)
        if one.changed:
            found = [series for series in found if series.owner == mine and series.members == {mine}]
        # A poll is expected to return the same, but not to fail.
        is_progress = one.kind_of_tool == "poll" and one.status != "error" and not policy.reads_plainly
        if is_progress and one.evidence:
            found = [series for series in found if mine not in series.members]
        if one.receipt and not one.evidence and not policy.reads_plainly:
            found = [
                series
                for series in found
                if mine not in series.members or series.answers[-1].status != "error"
            ]
        if not one.evidence or (one.kind_of_tool == "poll" and (is_progress or policy.reads_plainly)):
            continue
        joined = [series for series in found if series.owner == mine]
        if one.status == "error" and not policy.reads_plainly:
            joined += [
                series for series in found if series.answers[-1].status == "error" and series not in joined
            ]
        goes_on = next((series for series in joined if _goes_on(run, series.answers[-1], one, place)), None)
        found = [series for series in found if series is goes_on or mine not in series.members]
        if goes_on is None:
            found.append(_Series(mine, [one], {mine}))
        else:
            goes_on.answers.append(one)
            goes_on.members.add(mine)
    name = _name(run.current)
    own = [series for series in found if series.owner == name]
    own += [series for series in found if name in series.members]
    return own[0].answers if own else []


def _name(one: Past) -> str:
    """What a shell only looks at is another thing than what it runs."""
    return f"{one.tool} looks" if one.looks and one.tool == "bash" else one.tool


def _goes_on(run: History, last: Past, one: Past, place: int) -> bool:
    """Whether an answer is the one before again, without much that is new or a person's correction in between."""
    is_same = one.answer == last.answer or (one.status == last.status == "error" and one.text == last.text)
    new = run.new_results(place) - run.new_results(last.result_place or 0)
    return is_same and new < _NEW_RESULTS_THAT_END_A_SERIES and not _is_asked_anew(run, one, last)


def _is_asked_anew(run: History, one: Past, last: Past) -> bool:
    """Whether a person spoke since the last error, and a tool that reads is now called with something new."""
    moment = one.result_place if one.result_place is not None else run.now
    spoken = any((last.result_place or 0) < message <= moment for message in run.messages)
    known = [other for other in run.past if other.place <= moment]
    return spoken and one.tool in READERS and all(other is one or other.key != one.key for other in known)


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
