"""``python -m benchmarks.flood URL KEY BATCHES_PER_SECOND SECONDS CONNECTIONS``: one tenant's flood, in a process of its own.

Batches leave on a fixed schedule, whatever became of those before: each on a connection without an open request, or on
a new one.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

MEASURED = 1000
"""Events in a batch."""
SESSIONS = 100
PREPARED = 10
_MARK = b'"flood-#######-'
_HEAD_END = b"\r\n\r\n"


@dataclass
class Flood:
    """Batches by what became of them.

    Attributes
    ----------
    offered
        Begun to send.
    missed
        Due, but every connection waited for a response.
    statuses
        Responses by status; "0" for a connection that the server closed without one.
    cpu_seconds
        Processor time of the flood's own process.
    """

    offered: int = 0
    missed: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    cpu_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def accepted(self) -> int:
        """Batches that were stored."""
        return self.statuses["202"]

    @property
    def rejected(self) -> int:
        """Batches with another response, or none."""
        return sum(self.statuses.values()) - self.accepted

    def add(self, other: Self) -> None:
        """Add another run."""
        self.offered += other.offered
        self.missed += other.missed
        self.statuses += other.statuses
        self.cpu_seconds += other.cpu_seconds
        self.seconds += other.seconds

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what `main` printed."""
        values = json.loads(text)
        return cls(**values | {"statuses": Counter(values["statuses"])})


def batch(number: int) -> bytes:
    """Return the body of a batch of calls in many sessions, whose names have a mark to be replaced."""
    events = [
        {
            "type": "call",
            "session": f"flood-#######-{number}-{index % SESSIONS}",
            "call_id": f"c{number}-{index}",
            "tool": "search_web",
            "arguments": {"query": f"{number} {index % 7}", "page": index % 3},
        }
        for index in range(MEASURED)
    ]
    return json.dumps({"events": events}).encode()


class _Connection:
    """A keep-alive connection with at most one open request."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.unsent = memoryview(b"")
        self.received = b""

    def send(self) -> None:
        """Send what the socket takes now."""
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent = memoryview(b"")  # the response may still be there to be read

    def receive(self) -> str:
        """Read what has come; return the status of a complete response, "0" for a closed connection, else nothing."""
        try:
            part = self.socket.recv(65536)
        except BlockingIOError:
            return ""
        except OSError:
            part = b""
        if not part:
            return "0"
        self.received += part
        head, end, body = self.received.partition(_HEAD_END)
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if not end or len(body) < length:
            return ""
        self.received = b""
        return lines[0][9:12].decode()


class _Generator:
    """Offers batches over connections that are opened as they are needed."""

    def __init__(self, url: str, key: str, connections: int) -> None:
        at = urlsplit(url)
        self._address = (at.hostname or "", at.port or 80)
        self._most = connections
        self._selector = selectors.DefaultSelector()
        self._idle: list[_Connection] = []
        self._open = 0
        self.done = Flood()
        head = f"POST /api/v1/events HTTP/1.1\r\nHost: {at.netloc}\r\nAuthorization: Bearer {key}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n"
        bodies = [batch(number) for number in range(PREPARED)]
        self._requests = [head.format(len(body)).encode() + body for body in bodies]
        self._run = f"{time.time_ns() % 1000:03d}"

    def offer(self) -> bool:
        """Begin to send a batch; False if all connections wait for a response."""
        connection = self._free_connection()
        if connection is None:
            return False
        turn, number = divmod(self.done.offered, PREPARED)
        # The names of prepared batches are made new: making the bodies anew would cost more than the server needs.
        data = self._requests[number].replace(_MARK, b'"flood-%s%04d-' % (self._run.encode(), turn))
        connection.unsent = memoryview(data)
        self.done.offered += 1
        connection.send()
        self._watch(connection)
        return True

    def _free_connection(self) -> _Connection | None:
        if self._idle:
            return self._idle.pop()
        if self._open >= self._most:
            return None
        connection = _Connection(self._address)
        self._open += 1
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        return connection

    def serve(self, seconds: float) -> None:
        """Send and receive what is possible; return after the first of it, or after this time."""
        for key, mask in self._selector.select(max(0.0, seconds)):
            connection: _Connection = key.data
            if mask & selectors.EVENT_WRITE:
                connection.send()
                self._watch(connection)
            if mask & selectors.EVENT_READ and (status := connection.receive()):
                self._note(connection, status)

    def _watch(self, connection: _Connection) -> None:
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        if self._selector.get_key(connection.socket).events != mask:
            self._selector.modify(connection.socket, mask, connection)

    def _note(self, connection: _Connection, status: str) -> None:
        was_idle = connection in self._idle if status == "0" else False
        if not was_idle:
            self.done.statuses[status] += 1
        if status != "0" and not connection.unsent:
            self._idle.append(connection)
            return
        # Closed, or answered before the end of the body.
        if was_idle:
            self._idle.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._open -= 1


def main(url: str, key: str, per_second: float, seconds: float, connections: int) -> Flood:
    """Offer batches at a rate for some seconds; `inf` offers the next one as soon as a connection is free."""
    generator = _Generator(url, key, connections)
    done, pause = generator.done, 1 / per_second
    started, began_cpu = time.perf_counter(), time.process_time()
    due, ends_at = started, started + seconds
    while (now := time.perf_counter()) < ends_at:
        if due > now:
            generator.serve(min(due, ends_at) - now)
            continue
        if generator.offer():
            due += pause
        elif pause:
            done.missed += 1
            due += pause
        else:
            generator.serve(ends_at - now)
    done.seconds, done.cpu_seconds = time.perf_counter() - started, time.process_time() - began_cpu
    return done


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(vars(main(given[0], given[1], float(given[2]), float(given[3]), int(given[4])))))
