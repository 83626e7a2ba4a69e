"""An ASGI application on a real server, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from loopguard_site.live.server import server_options

START_SECONDS = 60.0
GRACE_SECONDS = 1.0
END_SECONDS = 10.0


class _Server(uvicorn.Server):
    """Ends as soon as it is asked to: uvicorn looks for it ten times a second, and then waits for as long."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.runs = threading.Event()

    async def main_loop(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        await self.on_tick(0)
        self.runs.set()
        await self._end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        listening: list[asyncio.Server | socket.socket] = [*self.servers, *(sockets or [])]
        for one in listening:
            one.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        deadline = time.monotonic() + GRACE_SECONDS
        while (self.server_state.connections or self.server_state.tasks) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)


@contextlib.contextmanager
def serving(application: Any, most_waiting: int = 1_000) -> Iterator[str]:
    """Serve an application on a free port like `live`, and yield its address."""
    options = server_options(most_waiting) | {"log_level": "error"}
    config = uvicorn.Config(application, log_config=None, **options)
    server = _Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert server.runs.wait(START_SECONDS), "the server did not start in time"
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.end()
            thread.join(END_SECONDS)
