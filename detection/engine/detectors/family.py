"""Identical calls and errors, spread over the sessions of a family.

    parent ── child 1: grep grep grep    child 2: grep grep grep    child 3: grep grep grep

A session that names a `parent_session` belongs to a family: the session at the top, those that it started, and so on
down. Each of them has its own context, so one may repeat what another has done, and no count of a single session shows
it. Counts identical calls of all of them beyond the first one of each session (many sub-agents that read one file once
each are not a loop), and fires at `family_max_repeats`; without known results, at twice as many. Identical errors of
one tool in a row fire at `family_max_errors`, if at least two sessions had them. A changed result, a successful change
of any of them, and a message of the user to the session at the top start the count over; calls further apart than
`family_window_seconds` do not count. The session whose call fires gets the reaction. The incident is one for the whole
family: that of the session at the top, which names the others, until it was not found for an hour.

Calls of tools of the class `poll` and errors of a provider are not counted. At most 200 sessions of a family are
counted, and eight levels; sessions whose parents form a circle have no family. A parent may be unknown, or become known
late.

- **False alarms:** children that verify each other's work with the same calls.
- **Misses:** children that make the same call once each, without end: set limits of `family_budget`.
- **Tuning:** raise `family_max_repeats` for fleets that share a board or an inbox, or declare its tool as `poll`.
- **Cost:** constant per call, one locked row for the whole family and two or three round trips to the database.
"""

from __future__ import annotations

from typing import TypedDict

from detection.engine.calls import Finding, ObservedCall
from detection.engine.detectors.base import (
    FAILS_AGAIN,
    QUIET,
    SURE,
    BaseDetector,
    Example,
    ExampleCall,
    Reading,
    detail,
    evidence,
)
from detection.engine.family import Repeats
from detection.engine.field import NOT_OF_TOOLS, ladder, number, switch
from detection.engine.identity import digest_of_calls
from detection.engine.memory import ERROR, Record, RunState
from detection.engine.policy_settings import PolicySettings
from detection.engine.results import ResultOutcome

# By definition: one session alone is judged by the other detectors.
_SEVERAL = 2
# Calls alone say half as much as calls with results, as in `stagnation`; a judgement, not measured.
_UNKNOWN_FACTOR = 2
# Keys of loops that are to be counted from zero with the next call, as many as a loop remembers.
_MAX_FORGOTTEN = 12


def _grep(session: str, letter: str = "A") -> ExampleCall:
    return ExampleCall(letter, "grep", {"pattern": letter}, f"{letter}: no such symbol", session=session)


class FamilyRepeatState(TypedDict, total=False):
    """What the detector remembers of one session: the keys to be counted from zero with the next call."""

    has_begun: bool
    forget: list[str]


class FamilyRepeat(BaseDetector):
    """Counts identical calls and errors over the sessions of a family."""

    kind = "family"
    spared_classes = ("poll",)
    label = "Repeats in a family"
    headline = "Repeated in a family"
    sentence = "*$tool* was repeated *$count times* by $sessions sessions of one family"
    recurrence = "*$tool* is repeated by sessions of one family"
    message = "'$tool' was repeated $count times by the sessions of this family, with the same result"
    error_advice = FAILS_AGAIN
    advice = "Another agent of this task already has the result: ask for it, or report what you have."
    again = "The same call again"
    again_by_name = "Another call of this tool"
    key_settings = ("family_ladder", "family_max_repeats", "family_max_errors")
    limit_setting = "family_max_repeats"
    further_limits = ("family_max_errors",)
    spans_session = True
    spans_family = True
    stands_alone = True
    only_warns_fallible = True
    settings = (
        switch(
            "family_enabled", False, "Detect repeats in a family",
            "Detect identical calls and errors across a session and the sessions it started.",
            weakens="off", scopes=NOT_OF_TOOLS,
        ),
        # A judgement, not measured: the first call of each session is free, and two sub-agents stay below
        # `max_repeats` with six.
        number(
            "family_max_repeats", 6, 2, 10_000, "Limit for repeats in a family",
            "Fires on the n-th identical call of a family, the first one of each session not counted.",
        ),
        # Twice `outcome_max_errors`, because it takes two sessions at least; not measured.
        number(
            "family_max_errors", 8, 2, 10_000, "Limit for errors in a family",
            "Fires on the n-th identical error of one tool in a row, in at least two sessions.", unit="errors",
        ),
        # A judgement, not measured: the sub-agents of one task run within the hour.
        number(
            "family_window_seconds", 3600, 0, 31_536_000, "Window of a family",
            "Calls of a family that are further apart do not count. 0 means no limit.", unit="seconds",
            weakens="down",
        ),
        ladder("family_ladder", "warn", "Reaction to repeats in a family"),
    )  # fmt: skip
    examples = {
        "family": Example(
            "four sub-agents, each with the same three calls",
            tuple(_grep(f"child {n // 3}") for n in range(12)),
            values={"repeat_enabled": False, "outcome_enabled": False, "stagnation_enabled": False},
        ),
        "family-once": Example(
            "eight sub-agents read the same file once each: not a loop",
            tuple(_grep(f"child {n}") for n in range(8)),
            fires=False,
        ),
    }

    def on_call(
        self,
        own: FamilyRepeatState,
        run: RunState,
        record: Record,
        call: ObservedCall,
        policy: PolicySettings,
    ) -> Reading:
        """Judge a call before it runs."""
        family, values = run.family, policy.values
        has_begun = own.get("has_begun", False)
        own["has_begun"] = True
        if family is None:
            return QUIET
        if not has_begun and not family.parent:
            family.begin_anew()
        family.forget(tuple(own.pop("forget", ())))
        if record.effect == "poll":
            return QUIET
        known = family.count_call(record.key, record.at, values["family_window_seconds"])
        limit = values["family_max_repeats"] * (1 if known.result else _UNKNOWN_FACTOR)
        if known.sessions >= _SEVERAL and known.count >= limit:
            return self._found(run, record, known, limit, "equal" if known.result else "unknown")
        errors = family.errors.get(record.tool)
        if errors is not None and errors.sessions >= _SEVERAL and errors.count >= values["family_max_errors"]:
            return self._found(run, record, errors, values["family_max_errors"], "errors")
        return Reading(known.count, limit) if known.sessions >= _SEVERAL else QUIET

    def on_result(
        self,
        own: FamilyRepeatState,
        run: RunState,
        record: Record,
        outcome: ResultOutcome,
        policy: PolicySettings,
    ) -> Reading:
        """Judge a call by its result."""
        family, values = run.family, policy.values
        if family is None or record.effect == "poll":
            return QUIET
        is_error = record.status == ERROR
        family.note_result(record.key, record.result, is_error=is_error)
        if not is_error or outcome.trouble:
            family.errors.pop(record.tool, None)
            return QUIET
        known = family.count_error(record.tool, record.result, record.at, values["family_window_seconds"])
        limit = values["family_max_errors"]
        if known.sessions >= _SEVERAL and known.count >= limit:
            return self._found(run, record, known, limit, "errors")
        return Reading(known.count, limit) if known.sessions >= _SEVERAL else QUIET

    def on_change(self, own: FamilyRepeatState, run: RunState, record: Record) -> None:
        """Discard evidence that a successful change has made obsolete."""
        if run.family is not None:
            run.family.keep_only(record.key)

    def on_message(self, own: FamilyRepeatState) -> None:
        """Begin anew with the next call if the session is at the top: the user may ask for the same again."""
        own["has_begun"] = False

    def reset(self, own: FamilyRepeatState, run: RunState, keys: tuple[str, ...]) -> None:
        """Start counting these calls again from zero, with the next call."""
        own["forget"] = [*own.get("forget", ()), *keys][-_MAX_FORGOTTEN:]

    def _found(self, run: RunState, record: Record, known: Repeats, limit: int, results: str) -> Reading:
        calls = [one for one in run.records if one.key == record.key]
        subject = (record.tool, known.result) if results == "errors" else (record.key,)
        finding = Finding(
            kind=self.kind,
            count=known.count,
            limit=limit,
            confidence=SURE,
            calls_digest=digest_of_calls(self.kind, subject),
            call_keys=(record.key,),
            seqs=evidence(calls),
            first_seq=calls[0].seq,
            results=results,
            detail=detail(record.tool, sessions=known.sessions, family=True),
        )
        return Reading(known.count, limit, finding)
