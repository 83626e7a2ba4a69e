"""Holds back reported events of a project with a spike, as its settings say: `services.ingestion.spikes`."""

from __future__ import annotations

import random
from typing import Final

from detection.api import prometheus
from detection.api.problems import Problem
from detection.api.requests import ApiRequest
from detection.engine.durations import relative
from detection.models import SpikeAction
from detection.services.ingestion.spikes import seconds_to_next_minute, spikes

SAMPLED: Final = Problem(
    429, "sampled", "The project has a spike, in which only the events of one session in ten are stored."
)
"""The error of an event that is not stored; the others of its request are."""
_SPREAD_SECONDS: Final = 5


def check_spike(request: ApiRequest) -> bool:
    """Return whether only a sample of the request's events is to be stored. Costs no query.

    Raises
    ------
    Problem
        429 `spike`, with `Retry-After`, if the project rejects reports above its limit.
    """
    principal = request.principal
    # Clients ask the guard, and send what it needs to know first: without that they would have to decide alone.
    if request.META.get("HTTP_USER_AGENT", "").startswith("loopguard-client"):
        return False
    limit = spikes.limit_exceeded(principal)
    if limit is None:
        return False
    prometheus.SPIKES.labels(principal.project_slug, principal.spike_action).inc()
    if principal.spike_action == SpikeAction.REJECT:
        spikes.count(principal, rejected=1)
        # Spread out, as everybody else who was rejected in this minute also comes back.
        wait_seconds = seconds_to_next_minute() + random.randint(0, _SPREAD_SECONDS)  # noqa: S311
        raise Problem(
            429,
            "spike",
            f"The project has reported {limit:,.0f} events in this minute, its limit. Nothing of this request was"
            f" stored. Send it again {relative(-wait_seconds)}.",
            headers={"Retry-After": str(wait_seconds)},
        )
    return principal.spike_action == SpikeAction.SAMPLE
