"""A small client that costs little: keep-alive sockets in threads; each sends as soon as it has a response."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks.report import percentile

Request = tuple[str, bytes]


class Connection:
    """One keep-alive connection."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        at = urlsplit(url)
        self._socket = socket.create_connection((at.hostname or "", at.port or 80), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": at.netloc, **headers}.items())
        self._waiting = b""

    def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request; return status and body."""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        data = self._waiting
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._read()
        lines = data[:end].lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        need = end + 4 + length
        while len(data) < need:
            data += self._read()
        self._waiting = data[need:]
        return int(lines[0][9:12]), data[end + 4 : need]

    def _read(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def close(self) -> None:
        """Close."""
        self._socket.close()


@dataclass
class Measured:
    """Results of a run of clients."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def per_second(self) -> float:
        """Requests per second."""
        return len(self.latencies) / self.seconds

    def milliseconds(self, share: float) -> float:
        """Return a percentile of the response time in milliseconds."""
        return 1000 * percentile(self.latencies, share)

    def add(self, other: Measured) -> None:
        """Add the results of another run."""
        self.seconds += other.seconds
        self.latencies += other.latencies
        self.refused += other.refused


def keep_asking(
    url: str, headers: dict[str, str], request: Callable[[int, int], Request], *, clients: int, seconds: float
) -> Measured:
    """Send requests from several clients for `seconds`, each one at a time.

    Parameters
    ----------
    request
        Returns a client's n-th request: path and body.
    """
    measured = Measured()
    lock = threading.Lock()
    ends_at = time.perf_counter() + seconds

    def ask(client: int) -> None:
        connection = Connection(url, headers)
        latencies, refused, number = [], 0, 0
        while (before := time.perf_counter()) < ends_at:
            path, body = request(client, number)
            before = time.perf_counter()
            status, _ = connection.send("POST", path, body)
            latencies.append(time.perf_counter() - before)
            refused += status >= 300
            number += 1
        connection.close()
        with lock:
            measured.latencies += latencies
            measured.refused += refused

    started = time.perf_counter()
    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    measured.seconds = time.perf_counter() - started
    return measured
