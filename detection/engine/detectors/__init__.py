"""The detectors, one per file, in the order in which they are asked and ranked.

A new detector is a module with a class like the others and one more line here. Detectors do not know one another.
"""

from __future__ import annotations

from detection.engine.detectors.base import QUIET, Detector, Reading
from detection.engine.detectors.budget import Budget
from detection.engine.detectors.cycle import Cycle
from detection.engine.detectors.outcome import Outcome
from detection.engine.detectors.repeat import Repeat
from detection.engine.detectors.similar import Similar
from detection.engine.detectors.stagnation import Stagnation

DETECTORS: tuple[Detector, ...] = (Repeat(), Cycle(), Similar(), Outcome(), Stagnation(), Budget())
"""Every detector; the position is the rank."""

ON_CALL = tuple(one for one in DETECTORS if type(one).on_call is not Detector.on_call)
ON_RESULT = tuple(one for one in DETECTORS if type(one).on_result is not Detector.on_result)
ON_CHANGE = tuple(one for one in DETECTORS if type(one).on_change is not Detector.on_change)
"""Those that have something to say there."""

RANK: dict[str, int] = {detector.kind: rank for rank, detector in enumerate(DETECTORS)}

BY_KIND: dict[str, Detector] = {detector.kind: detector for detector in DETECTORS}

__all__ = [
    "BY_KIND",
    "DETECTORS",
    "ON_CALL",
    "ON_CHANGE",
    "ON_RESULT",
    "QUIET",
    "RANK",
    "Detector",
    "Reading",
]
