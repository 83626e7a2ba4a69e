"""The time that calls, approvals and silence are counted by: that of the server, or of the test clock.

Where a result depends on how much time has passed between two events, the time comes from here. All other times (keys,
sign-ins, retention, deadlines of requests) are those of the machine, also in tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.utils import timezone

_past: ContextVar[datetime | None] = ContextVar("past", default=None)


@contextmanager
def at(moment: datetime) -> Iterator[None]:
    """Count by a moment of the past inside the block, in this context only: what is recorded there sends no alerts."""
    token = _past.set(moment)
    try:
        yield
    finally:
        _past.reset(token)


def is_past() -> bool:
    """Return whether what is recorded now is of the past; see `at`."""
    return _past.get() is not None


def now() -> datetime:
    """Return the current time, or the moment of `at`.

    With a test clock, this is what its file contains: a number of seconds since 1970. The file is read each time, so
    that all processes have the same time at once. `loopguard_site.env` refuses a test clock outside of tests.
    """
    if (past := _past.get()) is not None:
        return past
    if settings.TEST_CLOCK:
        return datetime.fromtimestamp(float(Path(settings.TEST_CLOCK).read_text(encoding="ascii")), UTC)
    return timezone.now()
