"""Checks of the lists by which routes and silences match alert events."""

from __future__ import annotations

from collections.abc import Sequence

from detection.engine.detectors import KINDS
from detection.models import Severity
from detection.services.errors import Invalid

MATCHERS = ("kinds", "severities", "tools", "agents", "backends", "model_names", "tags")
MAX_PATTERNS, MAX_PATTERN_LENGTH = 50, 128
_ALLOWED: dict[str, Sequence[str]] = {"kinds": KINDS, "severities": Severity.values}


def check_list(field: str, values: object, allowed: Sequence[str] | None = None) -> list[str]:
    """Return a list without duplicates, empty values and surrounding spaces.

    Parameters
    ----------
    field
        Column of a route or silence.
    allowed
        The values that may be used; None for globs and for the columns that have values of their own.

    Raises
    ------
    Invalid
        For too many or too long patterns, or a value that is not allowed.
    """
    name = "models" if field == "model_names" else field
    if not isinstance(values, list | tuple) or len(values) > MAX_PATTERNS:
        raise Invalid(f"`{name}` must be a list of at most {MAX_PATTERNS}.", field=name)
    cleaned = list(dict.fromkeys(str(value).strip() for value in values if str(value).strip()))
    if any(len(value) > MAX_PATTERN_LENGTH for value in cleaned):
        raise Invalid(f"A pattern in `{name}` must have at most {MAX_PATTERN_LENGTH} characters.", field=name)
    allowed = allowed or _ALLOWED.get(field)
    if allowed is not None and set(cleaned) - set(allowed):
        raise Invalid(f"`{name}` must contain only {', '.join(allowed)}.", field=name)
    return cleaned
