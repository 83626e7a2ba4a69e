"""``python -m benchmarks.flood URL KEY BATCHES_PER_SECOND SECONDS [CONNECTIONS]``: one tenant's flood, in a process of its own."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Self

from benchmarks.load import Connection

MEASURED = 1000
"""Events in a batch."""
CONNECTIONS = 48
SESSIONS = 100


@dataclass
class Flood:
    """Batches by what became of them."""

    offered: int = 0
    accepted: int = 0
    rejected: int = 0

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what `main` printed."""
        return cls(**json.loads(text))


def batch(client: int, number: int) -> bytes:
    """Return a batch of calls in many sessions."""
    events = [
        {
            "type": "call",
            "session": f"flood-{client}-{number % 10}-{index % SESSIONS}",
            "call_id": f"c{number}-{index}",
            "tool": "search_web",
            "arguments": {"query": f"{number} {index % 7}", "page": index % 3},
        }
        for index in range(MEASURED)
    ]
    return json.dumps({"events": events}).encode()


def main(url: str, key: str, per_second: float, seconds: float, connections: int = CONNECTIONS) -> Flood:
    """Offer batches at a rate, over many connections; a slow response does not slow the others down."""
    flood, lock = Flood(), threading.Lock()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    pause = 0.0 if math.isinf(per_second) else connections / per_second
    ends_at = time.perf_counter() + seconds
    bodies = [batch(0, number) for number in range(10)]

    def client(place: int) -> None:
        due, number = time.perf_counter() + pause * place / connections, 0
        connection: Connection | None = None
        while (now := time.perf_counter()) < ends_at:
            if due > now:
                time.sleep(min(due - now, ends_at - now))
                continue
            # The names of ten prepared batches are made this connection's own: making them anew would cost more than the server needs.
            body = bodies[number % 10].replace(b'"flood-0-', f'"flood-{place}.{number // 10}-'.encode())
            try:
                connection = connection or Connection(url, headers)
                status, _ = connection.send("POST", "/api/v1/events", body)
            except OSError:
                connection, status = None, 0
            with lock:
                flood.offered += 1
                flood.accepted += status == 202
                flood.rejected += status != 202
            number += 1
            due = max(due + pause, time.perf_counter() - pause)

    threads = [threading.Thread(target=client, args=(place,)) for place in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return flood


if __name__ == "__main__":
    given = sys.argv[1:]
    done = main(
        given[0], given[1], float(given[2]), float(given[3]), int(given[4]) if given[4:] else CONNECTIONS
    )
    print(json.dumps(asdict(done)))
