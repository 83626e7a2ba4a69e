"""Twin of `session_repeat`."""

from __future__ import annotations

from collections.abc import Sequence

from detection.engine.calls import Message
from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import History, Observation, Past


def session_repeat(run: History, policy: Policy, observations: Sequence[Observation]) -> Expected | None:
    """Write down the turn of every result, and read the list of those like the one in hand."""
    current, limit = run.current, policy.get("session_repeat_max_turns")
    if current is None or not run.is_after_result or not _counts(current):
        return None
    turns: list[int] = []
    last = None
    for one in run.answers():
        place = one.result_place or 0
        if one.changed and current.status != "error" and one.key != current.key:
            turns = []
        if (one.key, one.answer) != (current.key, current.answer):
            continue
        minute = int(one.at - run.past[0].at) // 60
        if last is not None and minute - last > policy.get("session_repeat_ttl_minutes"):
            turns = []
        last = minute
        turns.append(_turn(run, observations, place))
        if one is current:
            break
    count = sum(1 for place, turn in enumerate(turns) if turn > max(turns[:place], default=0))
    is_new = turns[-1] > max(turns[:-1], default=0)
    if not is_new or count not in [limit * 3**power for power in range(10)]:
        return None
    before = run.past[run.past.index(current) - 1] if run.past.index(current) else None
    is_alone = before is not None and before.key == current.key
    if current.status != "error" and (is_alone or (current.looks and count > limit)):
        return None
    results = {"error": "errors", "empty": "empty"}.get(current.status, "equal")
    return Expected("session_repeat", count, limit, results, advisory=True)


def _turn(run: History, observations: Sequence[Observation], place: int) -> int:
    """In which turn the last call before a place was made: turns without a call do not count."""
    turn, has_begun = 0, False
    for at, one in enumerate(observations[:place]):
        if isinstance(one, Message):
            has_begun = False
        elif not has_begun and any(call.place == at for call in run.past):
            turn, has_begun = turn + 1, True
    return turn


def _counts(one: Past) -> bool:
    if one.trouble or (one.kind_of_tool == "poll" and one.status != "error"):
        return False
    return one.kind_of_tool != "change" if one.status == "empty" else one.evidence
