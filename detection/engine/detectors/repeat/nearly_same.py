"""Identical calls in a row with nearly identical results, such as a page that is transcribed again.

This is advised against and never blocked: the next call judges identical results.
"""

from __future__ import annotations

from detection.engine.detectors.base import QUIET, Reading
from detection.engine.detectors.repeat.first_warning import first_advice
from detection.engine.detectors.repeat.in_a_row import finding_about_streak
from detection.engine.detectors.repeat.state import Likeness, Streak
from detection.engine.memory import OK, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome
from detection.engine.similarity import changed_words, word_set

# Fewer words are a state that changes; a judgement: 2 and 8 give the same figures on the 476 inspected runs of dev to
# dev4.
_MIN_CHANGED_WORDS = 4


def note_likeness(streak: Streak, record: Record, outcome: ResultOutcome, policy: PolicySettings) -> None:
    """Count the results in a row that are nearly the same, from the second call on."""
    share = policy.values["repeat_near_ratio"]
    if streak.moves_on or share == 1:
        return
    words, known = word_set(outcome.text, outcome.keyer), streak.likeness
    is_same = record.result == streak.result
    is_near = not is_same and known is not None and _are_nearly_the_same(words, known.words, share)
    if known is None:
        known = streak.likeness = Likeness(words, 0)
    known.words = words
    if record.status == OK and record.weight == 1 and (is_same or is_near):
        known.count += 1
        known.is_near = known.is_near or is_near
    else:
        known.count, known.is_near = 1, False


def _are_nearly_the_same(words: str, last: str, share: float) -> bool:
    """Return whether two sets of words share most of them, but differ in more than a state would."""
    changed, either = changed_words(words, last)
    return changed >= _MIN_CHANGED_WORDS and either - changed >= either * share


def judge(streak: Streak, run: RunState, record: Record, policy: PolicySettings) -> Reading:
    """Advise if a call is repeated although its results are nearly the same."""
    values, known = policy.values, streak.likeness
    warn_at = first_advice(values)
    if not warn_at or known is None or not known.is_near or policy.traits.tool_class == "poll":
        return QUIET
    # A state that is read may change a little each time.
    limit = warn_at + policy.traits.reads + run.allowances.get(record.key, 0)
    calls = known.count + 1
    if calls < limit:
        return QUIET
    finding = finding_about_streak(streak, run, record, policy, calls, calls, limit, "alike", advisory=True)
    return Reading(calls, limit, finding)
