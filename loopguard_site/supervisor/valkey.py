"""The embedded Valkey: broker and channel layer, a real server from a wheel, run as a child.

It stores nothing on disk: PostgreSQL is the queue of record, and the sweeper finds what is
lost here. Does not belong here: the messages.
"""

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from . import children
from .accounts import account_of_servers
from .addresses import check_port, free_port
from .binaries import valkey_server
from .data_folder import open_private_log
from .errors import SupervisorError
from .homes import reachable_home

_START_ATTEMPTS = 5
_START_TIMEOUT_SECONDS = 20.0
_STOP_TIMEOUT_SECONDS = 10.0


class EmbeddedValkey:
    """One Valkey server on a free port of the loopback address, with a random password.

    Parameters
    ----------
    folder : Path
        Contains its log.
    choose_port : callable
        Returns a port to try; called again while the server cannot start on it.
    environment : mapping, optional
        Variables of the server besides those of this process, such as `DataFolder.mark`.

    Notes
    -----
    Port and password stay the same after a restart, so clients reconnect. Starts in 0.05 s.
    """

    def __init__(
        self,
        folder: Path,
        choose_port: Callable[[], int] = free_port,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._environment = environment or {}
        self._choose_port = choose_port
        self.child: subprocess.Popen[bytes] | None = None
        self._password = secrets.token_urlsafe(24)
        self._port: int | None = None

    @property
    def log(self) -> Path:
        """The log file of the server."""
        return self.folder / "valkey.log"

    @property
    def url(self) -> str:
        """The `REDIS_URL` of this server; known after the start."""
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises
        ------
        SupervisorError
            There is no program for this platform, or the server does not start.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        account = account_of_servers()
        program = valkey_server(reachable_home(self.folder, account), account)
        if self._port:
            try:
                check_port("127.0.0.1", self._port)
            except SupervisorError:
                raise SupervisorError(
                    f"Port {self._port} of 127.0.0.1, on which Valkey ran, is in use by something else. End that, "
                    "or restart LoopGuard, which then chooses another port."
                ) from None
        for _ in range(_START_ATTEMPTS):
            port = self._port or self._choose_port()
            with open_private_log(self.log) as log, children.stops_held():
                self.child = children.launch(
                    [program, "-"],
                    cwd=Path("/"),
                    env={**os.environ, **self._environment},
                    become=account.become if account else None,
                    stdin=subprocess.PIPE,
                    stdout=log,
                )
            self._send_settings(port)
            if self._wait_until_it_answers(port):
                self._port = port
                return
            self.stop()  # most likely the port was taken in between
        tail = self.log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise SupervisorError(f"Valkey did not start. The end of {self.log}:\n{tail}")

    def stop(self) -> None:
        """Stop the server; nothing happens when it does not run."""
        if self.child is not None:
            children.end(self.child, signal.SIGTERM, timeout_seconds=_STOP_TIMEOUT_SECONDS)
            self.child = None

    def _send_settings(self, port: int) -> None:
        """Send the settings through a pipe, so that the password is on no disk and in no process list."""
        settings = {
            "bind": "127.0.0.1",
            "port": str(port),
            "requirepass": self._password,
            "save": '""',
            "appendonly": "no",
            "maxmemory-policy": "noeviction",  # a broker must never evict
            "daemonize": "no",
            "set-proc-title": "no",  # it would overwrite the environment, which tells whose server this is
        }
        if self.child is None or self.child.stdin is None:
            raise RuntimeError("the server was not started with a pipe")
        self.child.stdin.write("".join(f"{name} {value}\n" for name, value in settings.items()).encode())
        self.child.stdin.close()

    def _wait_until_it_answers(self, port: int) -> bool:
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while self.child is not None and self.child.poll() is None and time.monotonic() < deadline:
            if self._answers(port):
                return True
            time.sleep(0.02)
        return False

    def _answers(self, port: int) -> bool:
        """Tell whether our server, not another one on that port, answers."""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:
                    part = connection.recv(256)
                    if not part:
                        return False
                    answer += part
        except OSError:
            return False
        return answer == b"+OK\r\n+PONG\r\n"
