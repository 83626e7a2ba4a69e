"""The finding that a twin expects and the one of the engine, in one comparable form."""

from __future__ import annotations

from dataclasses import dataclass

from detection.engine.calls import Finding


@dataclass(frozen=True)
class Expected:
    """A finding without its identity, which has properties of its own."""

    kind: str
    count: float
    limit: float
    results: str = "unknown"
    period: int = 1
    advisory: bool = False


def as_expected(finding: Finding) -> Expected:
    """A finding of the engine in that form."""
    return Expected(
        finding.kind,
        finding.count,
        finding.limit,
        finding.results,
        finding.period,
        bool(finding.detail.get("advisory")),
    )
