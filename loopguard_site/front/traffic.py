"""Kinds of traffic: urgency, time limit and payer of a request."""

from __future__ import annotations

import enum
from typing import Final


class Traffic(enum.IntEnum):
    """Kinds of requests, the most urgent one first."""

    GUARD = 0
    INTERACTIVE = 1
    BULK = 2
    PROBE = 3
    """Has a thread of its own."""


SECONDS: Final = {
    Traffic.INTERACTIVE: 20.0,
    Traffic.BULK: 10.0,
    Traffic.PROBE: 3.0,
}
"""The longest time to the response, from the arrival of the request's last byte. That of the guard is a setting."""
BUDGET_HEADER: Final = "loopguard-timeout-ms"
"""The time that a client waits for the guard, in milliseconds; shortens the deadline, never extends it."""
_TRAFFIC: Final = {
    "/api/v1/guard": Traffic.GUARD,
    "/api/v1/events": Traffic.BULK,
    "/api/v1/otlp/v1/traces": Traffic.BULK,
    "/api/v1/otlp/v1/logs": Traffic.BULK,
    "/api/v1/otlp/v1/metrics": Traffic.BULK,
    "/readyz": Traffic.PROBE,
    "/metrics": Traffic.PROBE,
}
_HOOKS: Final = "/api/v1/hooks/"


def traffic_of(path: str) -> Traffic:
    """Return the kind of a request's path."""
    return Traffic.GUARD if path.startswith(_HOOKS) else _TRAFFIC.get(path, Traffic.INTERACTIVE)


def seconds_of(traffic: Traffic, budget: str | None, guard_seconds: float) -> float:
    """Return how long a request may take; `budget` is the value of its header `BUDGET_HEADER`."""
    if traffic != Traffic.GUARD:
        return SECONDS[traffic]
    if budget is not None and budget.isascii() and budget.isdigit() and len(budget) < 10:
        return min(guard_seconds, int(budget) / 1000)
    return guard_seconds
