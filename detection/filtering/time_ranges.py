"""Moments and time ranges in filters and addresses: ``-24h``, ``7d``, ``2026-11-01T08:00Z/2026-11-02T08:00Z``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final

from detection.filtering.language import FilterError

PRESETS: Final = {
    "1h": "Last hour",
    "24h": "Last 24 hours",
    "7d": "Last 7 days",
    "30d": "Last 30 days",
    "90d": "Last 90 days",
    "365d": "Last year",
}
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"([0-9]{1,5})([mhdw])")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_YEARS = range(1971, 9999)
_MOMENTS = "a date (`2026-11-01`), a time (`2026-11-01T08:00`) or an age (`-24h`)"
_RANGES = "a length (`24h`, `7d`, `4w`) or two times with a slash between them (`2026-11-01T00:00Z/2026-11-08T00:00Z`)"


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A half-open range of time; None means without a limit.

    Attributes
    ----------
    text
        As in the address; empty for all time.
    """

    text: str = ""
    start: datetime | None = None
    end: datetime | None = None


ALL_TIME: Final = TimeRange()


def moment(text: str, now: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """Return the first instant that a text means and the one after its last.

    Parameters
    ----------
    text
        A date, a date with time, or an age. A date means the whole day; the other two are one instant, so both results
        agree.
    zone
        For texts without an offset.

    Raises
    ------
    FilterError
    """
    if text.startswith("-"):
        length = _span(text[1:])
        if length is not None:
            instant = now - length
            return instant, instant
    elif _DATE.fullmatch(text):
        day = _read(text, UTC)
        if day is not None:
            return _midnight(day.date(), zone), _midnight(day.date() + timedelta(days=1), zone)
    else:
        found = _read(text, zone)
        if found is not None:
            return found, found
    raise FilterError(f"`{text[:40]}` is not a time. Use {_MOMENTS}.")


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def _read(text: str, zone: tzinfo) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo else found.replace(tzinfo=zone)
        # Whole days are added to moments, and every zone must be able to show them.
        return found.astimezone(UTC) if found.year in _YEARS else None
    except (ValueError, OverflowError):
        return None


def _span(text: str) -> timedelta | None:
    found = _SPAN.fullmatch(text)
    return timedelta(**{_UNITS[found[2]]: int(found[1])}) if found and int(found[1]) else None


def parse_range(text: str, now: datetime, zone: tzinfo) -> TimeRange:
    """Return the range of an address; an empty text means all time.

    Raises
    ------
    FilterError
    """
    if not text:
        return ALL_TIME
    length = _span(text)
    if length is not None and length <= timedelta(days=3660):
        return TimeRange(text, now - length, None)
    first, slash, last = text.partition("/")
    if not slash or not (first or last):
        raise FilterError(f"`{text[:40]}` is not a time range. Use {_RANGES}.")
    return between(first, last, now, zone)


def between(first: str, last: str, now: datetime, zone: tzinfo) -> TimeRange:
    """Return the range between two texts, either of which may be empty; a date at the end belongs to the range.

    Raises
    ------
    FilterError
    """
    start = moment(first, now, zone)[0] if first else None
    end = moment(last, now, zone)[1] if last else None
    if start and end and start >= end:
        raise FilterError("The start of a time range must be before its end.")
    return TimeRange(f"{written(start)}/{written(end)}" if start or end else "", start, end)


def written(instant: datetime | None) -> str:
    """Return an instant as it is written in addresses: in UTC, seconds only where they count."""
    if instant is None:
        return ""
    utc = instant.astimezone(UTC).replace(tzinfo=None)
    text = utc.isoformat(timespec="seconds" if utc.microsecond == 0 else "milliseconds")
    return (text.removesuffix(":00") if utc.second == 0 and utc.microsecond == 0 else text) + "Z"
