"""A way to the database that can stop passing anything on, as a server that hangs does."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import quote

from django.db import connection


class FreezableDatabase:
    """Passes connections on to the database of the tests until it is frozen, and again once it is thawed."""

    def __init__(self) -> None:
        at = connection.settings_dict
        host, port = str(at["HOST"]), str(at.get("PORT") or "5432")
        self._server = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._flowing = threading.Event()
        self._flowing.set()
        user = quote(str(at["USER"]), safe="")
        password = f":{quote(str(at['PASSWORD']), safe='')}" if at.get("PASSWORD") else ""
        own_port = self._listener.getsockname()[1]
        self.url = f"postgresql://{user}{password}@127.0.0.1:{own_port}/{at['NAME']}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing goes through during the block, and new connections get no response."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    def close(self) -> None:
        """End all connections."""
        self._flowing.set()
        for one in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                is_local = isinstance(self._server, str)
                server = socket.socket(socket.AF_UNIX if is_local else socket.AF_INET)
                self._sockets += [client, server]
                server.connect(self._server)
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                self._flowing.wait()
                target.sendall(part)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
