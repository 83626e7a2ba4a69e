"""When identical calls get their first warning: at `repeat_warn_at`, or in proportion to the limit."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from detection.engine.field import AUTO

_SHARE = 0.75
"""The 3rd of 4: on the 140 inspected runs, one at the 4th misses six loops, and one at the 2nd has six more
false alarms."""
_FEWEST = 3
"""Two identical calls are too common to warn about: nearly every healthy run has them."""


def first_warning(values: Mapping[str, Any]) -> int:
    """Return the number of identical calls that are warned about; 0 for no early warning."""
    warn_at = values["repeat_warn_at"]
    return of_limit(values) if warn_at == AUTO else int(warn_at)


def first_advice(values: Mapping[str, Any]) -> int:
    """Return the number at which calls are advised against that are never blocked: that of the first warning.

    Where `auto` gives no early warning, it is the limit; 0 for no advice.
    """
    return first_warning(values) or (values["repeat_warn_at"] and values["max_repeats"])


def of_limit(values: Mapping[str, Any]) -> int:
    """Return three quarters of the limit, rounded up and below it, or 0 if that is too early: 3 of 4, 38 of 50."""
    limit: int = values["max_repeats"]
    warn_at = min(ceil(_SHARE * limit), limit - 1)
    return warn_at if warn_at >= _FEWEST else 0
