"""Registry of detectors.

To add a detector, write a module in this package and add one line to `REGISTERED`. Settings, forms, API, metrics, texts
and documentation follow from the class; see `BaseDetector`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from detection.engine.detectors.base import QUIET, BaseDetector, Reading, RemovedDetector
from detection.engine.memory import RunState

REGISTERED = (
    "repeat.Repeat",
    "cycle.Cycle",
    "similar.Similar",
    "outcome.Outcome",
    "outage.Outage",
    "stagnation.Stagnation",
    "budget.Budget",
    "session_budget.SessionBudget",
    "session_repeat.SessionRepeat",
    "talk.Talk",
    "degenerate.Degenerate",
    "handoff.Handoff",
    "family.FamilyRepeat",
    "family_budget.FamilyBudget",
    "spawns.Spawns",
    "stalled.Stalled",
)
"""Module and class of every detector, by rank: of equally strict findings the first decides the verdict."""


def _load(path: str) -> BaseDetector:
    module, _, name = path.partition(".")
    detector: BaseDetector = getattr(import_module(f"{__name__}.{module}"), name)()
    return detector


DETECTORS: tuple[BaseDetector, ...] = tuple(map(_load, REGISTERED))
"""Every detector, by rank."""

BY_KIND: dict[str, BaseDetector] = {detector.kind: detector for detector in DETECTORS}

KINDS = tuple(BY_KIND)
"""Names of all detectors, by rank."""

RANK: dict[str, int] = {kind: rank for rank, kind in enumerate(KINDS)}

ON_CALL = tuple(one for one in DETECTORS if type(one).on_call is not BaseDetector.on_call)
ON_RESULT = tuple(one for one in DETECTORS if type(one).on_result is not BaseDetector.on_result)
ON_CHANGE = tuple(one for one in DETECTORS if type(one).on_change is not BaseDetector.on_change)
ON_MESSAGE = tuple(one for one in DETECTORS if type(one).on_message is not BaseDetector.on_message)
ON_USAGE = tuple(one for one in DETECTORS if type(one).on_usage is not BaseDetector.on_usage)
ON_TEXT = tuple(one for one in DETECTORS if type(one).on_text is not BaseDetector.on_text)
ON_TURN = tuple(one for one in DETECTORS if type(one).on_turn is not BaseDetector.on_turn)
ON_UNCOUNTED = tuple(one for one in DETECTORS if type(one).on_uncounted is not BaseDetector.on_uncounted)
ON_REBUILT = tuple(one for one in DETECTORS if type(one).on_rebuilt is not BaseDetector.on_rebuilt)
EXTENDABLE = tuple(one for one in DETECTORS if type(one).extend is not BaseDetector.extend)
"""The detectors that override a hook."""

RUN_LIMITS = frozenset(kind for kind, detector in BY_KIND.items() if detector.is_run_limit)
"""Kinds of findings about a run as a whole."""


def own_of(detector: BaseDetector, run: RunState) -> Any:
    """Return what a detector remembers of a run, or of the session."""
    own = run.detectors.get(detector.kind)
    if own is None:
        own = run.detectors[detector.kind] = detector.own_type()
    return own


def detector_for(kind: str) -> BaseDetector:
    """Return the detector of a finding or incident, also where it is no longer installed."""
    return BY_KIND.get(kind) or RemovedDetector(kind)


__all__ = [
    "BY_KIND",
    "DETECTORS",
    "EXTENDABLE",
    "KINDS",
    "ON_CALL",
    "ON_CHANGE",
    "ON_MESSAGE",
    "ON_REBUILT",
    "ON_RESULT",
    "ON_TEXT",
    "ON_TURN",
    "ON_UNCOUNTED",
    "ON_USAGE",
    "QUIET",
    "RANK",
    "REGISTERED",
    "RUN_LIMITS",
    "BaseDetector",
    "Reading",
    "RemovedDetector",
    "detector_for",
    "own_of",
]
