"""Limits how many sockets one process holds and how fast it takes new ones.

After a restart every open page comes back at once. Whoever is over the limit is asked, before the database is touched,
to come again later; the pages wait a random while between tries.
"""

from __future__ import annotations

import time

from asgiref.typing import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    Scope,
    WebSocketAcceptEvent,
    WebSocketCloseEvent,
)

MAX_SOCKETS = 2_000
ACCEPTS_PER_SECOND = 50.0
BURST_ACCEPTS = 100.0
TRY_AGAIN_LATER = 1013


class Admission:
    """ASGI middleware that answers 1013 beyond its limits.

    Parameters
    ----------
    application
        Who gets the sockets that are let in.
    max_sockets
        How many may be open at once.
    accepts_per_second, burst_accepts
        How fast new ones are let in, and how many at once after a quiet time.
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
        """Pass the socket on, or accept it only to say that it should come again later."""
        if not self._admits():
            await receive()
            await send(WebSocketAcceptEvent(type="websocket.accept", subprotocol=None, headers=[]))
            await send(WebSocketCloseEvent(type="websocket.close", code=TRY_AGAIN_LATER, reason=None))
            return
        self._open += 1
        try:
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
