"""Tells a receiver outside that LoopGuard works; the receiver raises the alarm when that stops.

What watches itself does not notice its own end. Beat schedules the signal, the broker carries it, a worker reads the
heartbeats from the database and sends it: so it stops with any of them.
"""

from __future__ import annotations

from typing import Final

import structlog
from django.conf import settings
from django.utils import timezone

from detection.selectors.heartbeats import heartbeats
from detection.services import outgoing_http

log = structlog.get_logger(__name__)
PARTS: Final = ("sweeper", "beat", "housekeeping")
"""Parts that always have work. One that has not begun yet, after a start, is no reason for silence."""


def send() -> bool:
    """Ask `LOOPGUARD_SIGNAL_URL`, unless a part is late; return whether the receiver has the signal.

    Costs one query and one request of at most five seconds; nothing without an address.
    """
    if not settings.SIGNAL_URL:
        return False
    late = [
        beat.part
        for beat in heartbeats(timezone.now())
        if beat.part in PARTS and beat.is_late and beat.at is not None
    ]
    if late:
        log.warning("signal_withheld", late=late)
        return False
    try:
        response = outgoing_http.request("GET", settings.SIGNAL_URL, {"User-Agent": "LoopGuard"})
    except (outgoing_http.AddressNotAllowed, outgoing_http.Unreachable) as error:
        log.warning("signal_failed", reason=str(error))
        return False
    if response.status >= 300:
        log.warning("signal_failed", reason=f"The receiver answered {response.status}.")
        return False
    return True
