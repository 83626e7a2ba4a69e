"""Times and amounts in words, spelled the same on screens and in alerts, messages and commands.

`static/js/durations.js` has the same rules for what scripts keep up to date; `tests/browser/durations.json` has cases
for both.
"""

from __future__ import annotations

from decimal import Decimal
from math import ceil, floor
from typing import Final

UNITS: Final = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
"""Seconds of each unit, the largest first."""
OF_UNIT: Final = {"seconds": 1, "minutes": 60}
"""Units of time that settings have, in seconds."""
_FEW: Final = 5
"""Below this many of its largest unit, a span is given in two units."""


def exact(value: float, unit: str = "seconds") -> str:
    """Return a time exactly, in its largest units: ``2 min``, ``1 h 30 min``, ``45 s``; ``0`` stays ``0``."""
    rest, parts = value * OF_UNIT[unit], []
    for name, seconds in UNITS.items():
        count = rest if name == "s" else rest // seconds
        rest -= count * seconds
        if count:
            parts.append(f"{count:g} {name}")
    return " ".join(parts) or "0"


def in_seconds(value: float) -> str:
    """Return a time in seconds however long it is: ``120 s``."""
    return f"{value:g} s"


def span(seconds: float, *, is_short: bool = False) -> str:
    """Return a span of time: ``0 s``, ``41 s``, ``2 min 5 s``, ``12 min``, ``2 h 5 min``, ``9 d``.

    Parameters
    ----------
    seconds
        Rounded to whole ones; negative ones are zero.
    is_short
        Whether to give the largest unit only.
    """
    rest = max(0, floor(seconds + 0.5))
    parts: list[str] = []
    for name, length in UNITS.items():
        count, rest = divmod(rest, length)
        if parts:
            return " ".join([*parts, f"{count} {name}"] if count else parts)
        if count:
            parts.append(f"{count} {name}")
            if is_short or count >= _FEW:
                break
    return " ".join(parts) or "0 s"


def precise(seconds: float) -> str:
    """Return a span with tenths of a second below two minutes: ``9.8 s``."""
    return f"{max(0.0, seconds):.1f} s" if seconds < 120 else span(seconds)


def milliseconds(value: float) -> str:
    """Return a short span: ``1.4 ms``, ``240 ms``, from ten seconds on as `span`."""
    if value >= 10_000:
        return span(value / 1000)
    return f"{value:.1f} ms" if 0 < value < 10 else f"{value:,.0f} ms"


def relative(seconds_ago: float) -> str:
    """Return a moment as seen from now: ``3 min ago``, ``just now``, ``now``, ``in 2 h``."""
    if floor(abs(seconds_ago) + 0.5) == 0:
        return "just now" if seconds_ago >= 0 else "now"
    words = span(abs(seconds_ago), is_short=True)
    return f"{words} ago" if seconds_ago > 0 else f"in {words}"


def left(seconds: float) -> str:
    """Return the time until a deadline: ``2 min 5 s left``, ``time is up``."""
    return f"{span(ceil(seconds))} left" if seconds > 0 else "time is up"


def amount(value: float, unit: str) -> str:
    """Return a counted amount with its unit, seconds as a time: ``9 min``, ``1,200 tokens``, ``1 call``."""
    words = figure(value, unit)
    return words if unit in OF_UNIT else f"{words} {unit.removesuffix('s') if value == 1 else unit}"


def money(value: float | Decimal | None) -> str:
    """Return US dollars; four places where it is less than a cent."""
    amount = float(value or 0)
    return f"${amount:,.4f}" if 0 < amount < 0.01 else f"${amount:,.2f}"


def figure(value: float, unit: str) -> str:
    """Return a counted amount, without its unit unless that is one of time."""
    if unit in OF_UNIT:
        return span(value * OF_UNIT[unit])
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}".rstrip("0").rstrip(".")
