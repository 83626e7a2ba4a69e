"""Twin of `outage`."""

from __future__ import annotations

from typing import Any

from detection.engine.policy import Policy
from tests.engine.twins.findings import Expected
from tests.engine.twins.history import History

_WORDS = ("too many requests", "timed out")


def outage(run: History, policy: Policy) -> Expected | None:
    """Read the answers of the current call's tool backwards, as long as they report trouble."""
    current, limit = run.current, policy.get("outage_max_errors")
    if current is None or not run.is_after_result or current.kind_of_tool == "fallible":
        return None
    series: list[Any] = []
    for one in reversed([one for one in run.answers() if one.tool == current.tool]):
        reports = one.status == "error" and any(words in one.text.lower() for words in _WORDS)
        if not reports or one.kind_of_tool == "fallible":
            break  # a shell that does not wait reports no trouble
        series.insert(0, one)
    count = sum(
        1
        for place, one in enumerate(series)
        if not (place and one.round is not None and series[place - 1].round == one.round)
    )
    return Expected("outage", count, limit, "errors", advisory=True) if count >= limit else None
