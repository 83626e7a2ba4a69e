"""Calls the hooks of the detectors that a policy turns on. One that raises is skipped for that step and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from detection.engine.calls import Finding, Message, Meter, ObservedCall, ObservedUsage, Usage
from detection.engine.detectors import (
    BY_KIND,
    ON_CALL,
    ON_CHANGE,
    ON_MESSAGE,
    ON_REBUILT,
    ON_RESULT,
    ON_TEXT,
    ON_TURN,
    ON_UNCOUNTED,
    ON_USAGE,
    QUIET,
    BaseDetector,
    Reading,
    own_of,
)
from detection.engine.detectors.base import NAMES_ONLY
from detection.engine.identity import Keyer
from detection.engine.memory import Record, RunState, State
from detection.engine.policy import Policy
from detection.engine.results import ResultOutcome

Faults = tuple[tuple[str, str], ...]
"""Detectors that raised, as kind and type of the exception."""
Moment = Literal["on_call", "on_result"]
_Hook = tuple[str, Callable[..., Reading], bool, Callable[[], Any]]


def judge(
    state: State,
    run: RunState,
    record: Record,
    policy: Policy,
    observed: ObservedCall | ResultOutcome,
    moment: Moment,
) -> tuple[list[Finding], Meter | None, Faults]:
    """Return the findings about a call or its result, the reading that is closest to its limit, and the faults."""
    findings: list[Finding] = []
    # The kind that is closest to its limit, and how close: so many of so many.
    closest, most, out_of = "", -1, 1
    faults: Faults = ()
    of_run, of_session = run.detectors, state.whole.detectors
    run.family = state.family
    name = moment if state.family is None else f"{moment} in a family"
    for kind, hook, spans_session, own_type in policy.plans.get(name) or _plan(policy, moment, name):
        kept = of_session if spans_session else of_run
        own = kept.get(kind)
        if own is None:
            own = kept[kind] = own_type()
        try:
            reading = hook(own, run, record, observed, policy)
        except Exception as error:  # noqa: BLE001 - a defect of LoopGuard must never block a call
            faults += (_fault(kind, error),)
            continue
        if reading is QUIET:
            continue
        finding = reading.finding
        if finding is not None:
            if policy.values["identity"] == "tool" and BY_KIND[kind].is_of_calls:
                finding = replace(finding, detail={**finding.detail, NAMES_ONLY: True})
            findings.append(finding)
        elif not reading.reached:
            continue
        if reading.reached * out_of > most * reading.limit:
            closest, most, out_of = kind, reading.reached, reading.limit
    return findings, Meter(closest, most, out_of) if closest else None, faults


def _plan(policy: Policy, moment: Moment, name: str) -> tuple[_Hook, ...]:
    """Return the hooks that this policy turns on, and keep them in its plans under this name."""
    detectors = ON_CALL if moment == "on_call" else ON_RESULT
    hooks = tuple(
        (one.kind, getattr(one, moment), one.spans_session, one.own_type)
        for one in detectors
        if policy.values[one.switch] and not (one.needs_family and name == moment)
    )
    policy.plans[name] = hooks
    return hooks


def judge_text(state: State, message: Message, policy: Policy, keyer: Keyer) -> tuple[list[Finding], Faults]:
    """Return the findings about a text or a compaction."""
    findings: list[Finding] = []
    faults: Faults = ()
    for detector in ON_TEXT:
        if not policy.values[detector.switch]:
            continue
        own = own_of(detector, state.whole)
        try:
            finding = detector.on_text(own, state.whole, message, policy, keyer).finding
        except Exception as error:  # noqa: BLE001 - see `judge`
            faults += (_fault(detector.kind, error),)
            continue
        findings += [finding] if finding is not None else []
    return findings, faults


def note_change(state: State, run: RunState, record: Record) -> Faults:
    """Stop counting what was called before a successful change, for every detector that is on or off."""
    run.epoch, run.family = record.ordinal, state.family
    for other in run.records:
        if other.key != record.key:
            other.is_obsolete = True
    faults: Faults = ()
    for detector in ON_CHANGE:
        own = _owner(detector, state, run).detectors.get(detector.kind)
        if own is None:
            continue
        try:
            detector.on_change(own, run, record)
        except Exception as error:  # noqa: BLE001 - see `judge`
            faults += (_fault(detector.kind, error),)
    return faults


def note_turn(state: State) -> None:
    """Note that a turn begins."""
    for owner in state.counted:
        for detector in ON_TURN:
            if detector.kind in owner.detectors:
                detector.on_turn(owner.detectors[detector.kind])


def note_message(run: RunState) -> None:
    """Note that the user spoke."""
    for detector in ON_MESSAGE:
        if detector.kind in run.detectors:
            detector.on_message(run.detectors[detector.kind])


def note_usage(state: State, run: RunState, usage: ObservedUsage, policy: Policy) -> None:
    """Add the usage of a model response."""
    for detector in ON_USAGE:
        if policy.values[detector.switch]:
            detector.on_usage(own_of(detector, _owner(detector, state, run)), usage)


def note_uncounted(state: State, call: ObservedCall, policy: Policy) -> None:
    """Note a call that is not judged."""
    for detector in ON_UNCOUNTED:
        if policy.values[detector.switch]:
            detector.on_uncounted(own_of(detector, state.whole), call)


def note_rebuilt(state: State, calls: int, used: Usage, policy: Policy) -> None:
    """Note the usage of a session whose state was rebuilt from its latest events only."""
    for detector in ON_REBUILT:
        if policy.values[detector.switch]:
            own = state.whole.detectors.get(detector.kind) or detector.own_type()
            detector.on_rebuilt(own, calls, used)
            if own:
                state.whole.detectors[detector.kind] = own


def _owner(detector: BaseDetector, state: State, run: RunState) -> RunState:
    return state.whole if detector.spans_session else run


def _fault(kind: str, error: Exception) -> tuple[str, str]:
    return kind, type(error).__name__
