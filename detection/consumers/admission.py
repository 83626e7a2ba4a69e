"""Limits the number of sockets per process and the rate of new ones.

After a restart, all open pages reconnect at once. Sockets above the limit are rejected before the database is used;
pages wait for a random time between attempts.
"""

from __future__ import annotations

import time

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope

from detection.consumers.denials import deny
from detection.web.process_metrics import CONNECTIONS

MAX_SOCKETS = 2_000
ACCEPTS_PER_SECOND = 50.0
BURST_ACCEPTS = 100.0
RETRY_AFTER = b"retry-after", b"4"


class Admission:
    """ASGI middleware that rejects sockets above its limits (503).

    Parameters
    ----------
    application
        The wrapped application.
    max_sockets
        Maximum number of open sockets.
    accepts_per_second, burst_accepts
        Rate of new sockets, and how many are accepted at once after a pause.
    """

    def __init__(
        self,
        application: ASGI3Application,
        *,
        max_sockets: int = MAX_SOCKETS,
        accepts_per_second: float = ACCEPTS_PER_SECOND,
        burst_accepts: float = BURST_ACCEPTS,
    ) -> None:
        self._application = application
        self._max_sockets, self._rate, self._burst = max_sockets, accepts_per_second, burst_accepts
        self._open, self._tokens, self._filled_at = 0, burst_accepts, time.monotonic()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass the socket on, or reject its handshake."""
        if not self._admits():
            await deny(send, 503, "busy", "Too many sockets at a time. Retry in a moment.", RETRY_AFTER)
            return
        self._open += 1
        try:
            with CONNECTIONS.labels("socket").track_inprogress():
                await self._application(scope, receive, send)
        finally:
            self._open -= 1

    def _admits(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._open >= self._max_sockets or self._tokens < 1:
            return False
        self._tokens -= 1
        return True
