"""Twin of `repeat`."""

from __future__ import annotations

import math
import re
from itertools import pairwise

from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import READERS, History, Past, counts_by_receipt

_WORDS = {"error": "errors", "empty": "empty", "ok": "equal"}


def repeat(run: History, policy: Policy) -> Expected | None:
    """Expect a finding at the call or answer in hand."""
    if run.current is None:
        return None
    if run.is_after_result:
        if not policy.get("result_aware"):
            return None
        return _nearly(run, policy) or _scattered(run, policy)
    scope = policy.get("repeat_scope")
    if scope == "consecutive":
        return _in_a_row(run, policy)
    return _counted(run, policy, policy.get("window_calls") if scope == "window" else None)


def _counted(run: History, policy: Policy, window: int | None) -> Expected | None:
    """All equal calls of the run, or those among the last ones, that no change has overtaken."""
    current, calls = run.current, run.past[:-1]
    if window is not None:
        calls = calls[-window:]
    never = window is None or policy.get("ttl_from") == "never"
    equal = [
        one
        for one in calls
        if one.key == current.key
        and one.live(run.now)
        and (never or current.at - one.at <= policy.get("ttl_seconds"))
    ]
    count = len(equal) + 1
    if count < policy.get("max_repeats"):
        return None
    remembered = run.past[-policy.memory_calls :]
    answers = {one.answer for one in remembered if one.key == current.key and one.answer}
    results = "unknown" if not answers else "equal" if len(answers) == 1 else "changing"
    return Expected("repeat", count, policy.get("max_repeats"), results)


def _streak(run: History, policy: Policy) -> list[Past]:
    """Identical calls in a row, the newest last."""
    return _streak_and_turns(run, policy)[0]


def _streak_and_turns(run: History, policy: Policy) -> tuple[list[Past], int]:
    """Identical calls in a row, and in how many turns in a row the same was answered.

    A change elsewhere or a long pause ends a streak, and so does a person who speaks after a success.
    """
    plain = policy.reads_plainly or not policy.get("result_aware")
    events: list[tuple[int, int, Past | None]] = [(one.place, 0, one) for one in run.past]
    events += [(one.result_place or 0, 1, one) for one in run.answers()]
    events += [(place, 2, None) for place in run.messages if not plain]
    streak: list[Past] = []
    last: Past | None = None
    before, turns, spoken = "", 1, False
    for _, kind, one in sorted(events, key=lambda event: event[:2]):
        if one is None:
            spoken = last is not None and last.status != "error"
        elif kind == 1:
            if one in streak:
                turns = 1 if before and one.answer != before else turns
                last = one
            elif one.changed and streak and one.key != streak[-1].key:
                streak, last, before, turns, spoken = [], None, "", 1, False
        elif streak and streak[-1].key == one.key and spoken:
            before, turns = last.answer, turns + 1
            streak, last, spoken = [one], None, False
        else:
            kept = _young(streak, one, policy) if streak and streak[-1].key == one.key else []
            if not kept:
                last, before, turns, spoken = None, "", 1, False
            streak = [*kept, one]
    return streak, turns


def _young(streak: list[Past], one: Past, policy: Policy) -> list[Past]:
    """The calls of a streak that still count at a further one."""
    ttl, ttl_from = policy.get("ttl_seconds"), policy.get("ttl_from")
    if ttl_from == "previous" and policy.get("write_period_minutes") and counts_by_receipt(one, policy):
        # Writes of the last hour count, whatever lies between them.
        ttl, ttl_from = policy.get("write_period_minutes") * 60 - 1, "entry"
    if ttl_from == "entry":
        # Each call ages by itself; one exactly as old as the time to live still counts.
        return [earlier for earlier in streak if one.at - earlier.at <= ttl]
    return [] if ttl_from == "previous" and one.at - streak[-1].at > ttl else streak


def _in_a_row(run: History, policy: Policy) -> Expected | None:
    streak, turns = _streak_and_turns(run, policy)
    if not policy.get("result_aware"):
        count, limit = len(streak), policy.get("max_repeats")
        return Expected("repeat", count, limit) if count >= limit else None
    same, known, changes, last, paced = _since_last_change(run, streak)
    poll = run.current.kind_of_tool == "poll"
    if len(streak) == 1 and turns > 1:
        # Without an early warning, the limit; 0 turns off both.
        advised_at = _first_warning(policy) or (policy.get("repeat_warn_at") and policy.get("max_repeats"))
        if turns != advised_at or poll:
            return None
        return Expected("repeat", turns, policy.get("max_repeats"), "equal", advisory=True)
    poll = poll and not (last is not None and last.status == "error" and not last.trouble)
    limit = policy.get("poll_max_repeats" if poll else "max_repeats")
    warn_at = policy.get("poll_warn_at") if poll else _first_warning(policy)
    words = _WORDS[last.status] if last is not None else "unknown"
    whole = int(same + 1e-9)
    if same + 1e-9 >= limit:
        count = max(whole if changes else len(streak), limit)
        return Expected("repeat", count, limit, words)
    if warn_at and same + 1e-9 >= warn_at and known >= min(warn_at, limit) - 1:
        return Expected("repeat", whole, limit, words, advisory=True)
    many = policy.get("max_repeats_changing")
    steady = changes and not _moves(
        [one.text for one in run.answers() if one in streak and _is_compared(one, streak)]
    )
    looks = run.current.kind_of_tool in ("poll", "read") or (run.current.looks and not policy.reads_plainly)
    if steady and paced + 1e-9 >= many and not looks:
        return Expected("repeat", len(streak), many, "changing", advisory=True)
    return None


def _first_warning(policy: Policy) -> int:
    """When the early warning comes: as set, or at three quarters of the limit but not before the third call."""
    if policy.get("repeat_warn_at") != "auto":
        return policy.get("repeat_warn_at")
    limit = policy.get("max_repeats")
    early = min(math.ceil(0.75 * limit), limit - 1)
    return early if early >= 3 else 0


def _is_compared(one: Past, streak: list[Past]) -> bool:
    """Whether the call had been repeated when its result came."""
    return sum(other.place < one.result_place for other in streak) > 1


def _moves(texts: list[str]) -> bool:
    """Whether a figure at some place of the results only ever rises or only ever falls."""
    rows = [[int(figure) for figure in re.findall(r"(?<![\w.])\d{1,7}(?!\w)", text)[:4]] for text in texts]
    columns = list(zip(*rows, strict=False))
    directions = [{(b > a) - (b < a) for a, b in pairwise(column)} - {0} for column in columns]
    return any(len(direction) == 1 for direction in directions)


def _nearly(run: History, policy: Policy) -> Expected | None:
    """Compare neighbouring results of one streak, from its second call on."""
    current, streak = run.current, _streak(run, policy)
    warn_at, share = _first_warning(policy), policy.get("repeat_near_ratio")
    if policy.get("repeat_warn_at") == "auto" and not warn_at:
        warn_at = policy.get("max_repeats")
    if current not in streak or not warn_at or share == 1 or current.kind_of_tool == "poll":
        return None
    alike, near, last, before = 0, False, None, None
    for one in (one for one in run.answers() if one in streak):
        if _is_compared(one, streak):
            words = set(re.findall(r"\w+", re.sub(r"\d", "", one.text)))
            same = before is not None and one.answer == before.answer
            nearly = (
                not same
                and last is not None
                and len(words ^ last) >= 4
                and len(words & last) >= share * len(words | last)
            )
            if one.status == "ok" and one.weight == 1 and (same or nearly):
                alike, near = alike + 1, near or nearly
            else:
                alike, near = 1, False
            last = words
        before = one
    limit = warn_at + (current.tool in READERS)
    if not near or alike + 1 < limit:
        return None
    return Expected("repeat", alike + 1, limit, "alike", advisory=True)


def _since_last_change(run: History, streak: list[Past]) -> tuple[float, int, int, Past | None, float]:
    """Weight of the calls since the answer last changed, answers known since then, changes that were progress, all weight."""
    answers = [one for one in run.answers() if one in streak]
    same, known, changes, paced = 0.0, 0, 0, 0.0
    last: Past | None = None
    moments = sorted(
        [(one.place, 0, one) for one in streak] + [(one.result_place, 1, one) for one in answers],
        key=lambda m: m[:2],
    )
    for moment, is_answer, one in moments:
        if not is_answer:
            # Errors that come slowly are no patient poll, except those of a provider.
            patient = one is not streak[0] and (last is None or last.status != "error" or last.trouble)
            same += one.weight if patient else 1.0
            paced += one.weight if patient else 1.0
            continue
        both_errors = last is not None and last.status == one.status == "error"
        if last is not None and one.answer != last.answer and not both_errors:
            # This answer is the first of a new series, and the calls still under way belong to it.
            same = 1.0 + sum(1 for other in streak if one.place < other.place < moment)
            known = 0
            changes += one.status != "error"
        known += 1
        last = one
    return same, known, changes, last, paced


def _scattered(run: History, policy: Policy) -> Expected | None:
    """Count identical calls with the same result: recently and without a change since, or in the whole run."""
    current = run.current
    if current.new or current.kind_of_tool == "poll" or current.weight < 1:
        return None
    identical = [one for one in run.past if one.key == current.key and one.answer == current.answer]
    window = run.past[-policy.get("scattered_window_calls") :]
    recent = sum(1 for one in identical if one in window and one.live(run.now))
    in_run = 0
    if current.evidence and (current.status == "error" or not current.looks):
        spoken = max((place for place in run.messages if place <= run.now), default=-1)
        in_run = sum(1 for one in identical if one.weight == 1 and (one.result_place or 0) > spoken)
    results = "errors" if current.status == "error" else "equal"
    run_limit = max(0, policy.get("scattered_run_repeats") - (current.status == "error"))
    if current.status == "error" and 1 < in_run < run_limit:
        # Two calls that fail again, each in its own way, need one more in all than one of them alone.
        beside = max((count for count in _failed_beside(run, policy, spoken) if count > 1), default=0)
        run_limit = in_run if in_run + beside > run_limit else run_limit
    for count, limit in ((recent, policy.get("scattered_repeats")), (in_run, run_limit)):
        if limit and count >= limit:
            return Expected("repeat", count, limit, results, advisory=True)
    return None


def _failed_beside(run: History, policy: Policy, spoken: int) -> list[int]:
    """How often each other call that is remembered has failed with its error since the user spoke; polls may fail."""
    failed = [
        one
        for one in run.past
        if one.status == "error"
        and one.evidence
        and one.key != run.current.key
        and one.kind_of_tool != "poll"
    ]
    counts = []
    for other in [one for one in run.past[-policy.memory_calls :] if one in failed]:
        alike = [one for one in failed if (one.key, one.answer) == (other.key, other.answer)]
        counts.append(sum(1 for one in alike if one.weight == 1 and (one.result_place or 0) > spoken))
    return counts
