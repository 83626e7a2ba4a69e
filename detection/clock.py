"""The time that calls, approvals and silence are counted by: that of the server, or of the test clock.

Where a result depends on how much time has passed between two events, the time comes from here. All other times (keys,
sign-ins, retention, deadlines of requests) are those of the machine, also in tests.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.utils import timezone


def now() -> datetime:
    """Return the current time.

    With a test clock, this is what its file contains: a number of seconds since 1970. The file is read each time, so
    that all processes have the same time at once. `loopguard_site.env` refuses a test clock outside of tests.
    """
    if settings.TEST_CLOCK:
        return datetime.fromtimestamp(float(Path(settings.TEST_CLOCK).read_text(encoding="ascii")), UTC)
    return timezone.now()
