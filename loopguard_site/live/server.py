"""The command `live`: the one place for the options of its server, however it is started."""

from __future__ import annotations

import argparse
import contextlib
import resource
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import Any, Final

import anyio
import uvicorn
from uvicorn.config import STARTUP_FAILURE

from detection.web.ending import is_closing, is_ending
from loopguard_site import interpreter
from loopguard_site.layout import program
from loopguard_site.live.connections import LiveConnection, LiveSocket, WaitingConnections

DEFAULT_PORT: Final = 8301
MAX_WAITING: Final = 4096
"""Connections that wait for their client. With the largest heads, they take 128 MiB."""
SHARE_OF_WAITING: Final = 4
"""Of so many files that the process may open, one may be such a connection. Sockets, requests to the gateway, their
model servers and the database need the others."""
MAX_FRAME_BYTES: Final = 4096
"""Of a frame or message of a page; the longest that is understood has 512 characters."""
BACKLOG: Final = 512
"""New connections that the loop accepts at once, which takes it some 25 ms."""
GRACEFUL_SECONDS: Final = 20
"""For requests to the gateway in flight, which wait for models; less than the supervisor waits."""


class DrainingServer(uvicorn.Server):
    """Answers for a while after SIGTERM, with a readiness that says that it ends; a second signal ends it.

    Parameters
    ----------
    drain_seconds
        How long.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal to end."""
        if sig != signal.SIGTERM or not self._drain_seconds or is_ending.is_set():
            is_ending.set()
            super().handle_exit(sig, frame)
            return
        is_ending.set()
        # Until then, the loop accepts connections.
        later = threading.Timer(self._drain_seconds, super().handle_exit, (sig, None))
        later.daemon = True
        later.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and let what is in flight finish."""
        is_closing.set()
        await super().shutdown(sockets)


def live(arguments: Sequence[str]) -> None:
    """Serve WebSockets, long polls and the gateway, as one of the four processes."""
    parser = argparse.ArgumentParser(prog=f"{program()} live", description=live.__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port (default %(default)s)")
    chosen = parser.parse_args(arguments)
    from django.conf import settings

    from detection.services import outgoing_http
    from loopguard_site.asgi import application

    # What the first request to a model server would load, in the event loop.
    outgoing_http.tls_context()
    anyio.run(anyio.sleep, 0)
    interpreter.prepare()
    options = server_options(min(MAX_WAITING, raise_file_limit() // SHARE_OF_WAITING))
    config = uvicorn.Config(application, host=chosen.host, port=chosen.port, **options)
    server = DrainingServer(config, settings.ENV.drain_seconds)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


def server_options(most_waiting: int) -> dict[str, Any]:
    """Return the options of uvicorn; at most so many connections wait for their client."""
    return {
        "http": partial(LiveConnection, waiting=WaitingConnections(most_waiting)),
        "ws": LiveSocket,
        "ws_max_size": MAX_FRAME_BYTES,
        "ws_per_message_deflate": False,  # hints are short, and each socket would hold its window
        "backlog": BACKLOG,
        "lifespan": "off",
        "log_level": "warning",
        "access_log": False,
        "proxy_headers": False,
        # Responses of the gateway have the headers of the model server only.
        "server_header": False,
        "date_header": False,
        "timeout_graceful_shutdown": GRACEFUL_SECONDS,
    }


def raise_file_limit() -> int:
    """Let the process open as many files as it may, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS has another limit below an unlimited one
            return soft
    return hard if hard != resource.RLIM_INFINITY else MAX_WAITING * SHARE_OF_WAITING
