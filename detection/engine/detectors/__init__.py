"""The detectors, one per file, in the order in which they are asked and ranked.

A new detector is a module with a class like the others and one more line here. Detectors do not know one another.
"""

from __future__ import annotations

from detection.engine.detectors.base import Detector, Reading
from detection.engine.detectors.repeat import Repeat

DETECTORS: tuple[Detector, ...] = (Repeat(),)
"""Every detector; the position is the rank."""

RANK: dict[str, int] = {detector.kind: rank for rank, detector in enumerate(DETECTORS)}

BY_KIND: dict[str, Detector] = {detector.kind: detector for detector in DETECTORS}

__all__ = ["BY_KIND", "DETECTORS", "RANK", "Detector", "Reading"]
