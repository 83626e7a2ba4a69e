"""Metrics of one process for Prometheus, and who may read them. `api.prometheus` adds those of `web` and the database.

`live`, workers and beat answer `/metrics` for themselves. Under `up`, the processes count in files of the folder
`PROMETHEUS_MULTIPROC_DIR`, and `web` answers for all of them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from django.db import DatabaseError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from detection.models import KeyScope
from detection.services import keys
from detection.services.keys import Principal

REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
CONNECTIONS: Final = Gauge(
    "loopguard_live_connections",
    "Open connections of `live`: sockets of pages, agents that wait for an approval, requests to the gateway.",
    ("kind",),
    multiprocess_mode="livesum",
    registry=REGISTRY,
)
TASKS: Final = Counter(
    "loopguard_tasks_total", "Ended tasks of workers by name and state.", ("task", "state"), registry=REGISTRY
)
TASK_SECONDS: Final = Histogram(
    "loopguard_task_seconds",
    "Time that tasks of workers took.",
    ("task",),
    buckets=(0.01, 0.05, 0.2, 1.0, 5.0, 20.0, 60.0, 300.0),
    registry=REGISTRY,
)
PERIODIC_RUNS: Final = Counter(
    "loopguard_periodic_runs_total",
    "Runs of what workers and beat do every few seconds without the broker, by outcome.",
    ("work", "outcome"),
    registry=REGISTRY,
)
_READERS: Final = frozenset((KeyScope.METRICS, KeyScope.ADMIN))
_KNOWN_SECONDS: Final = 3600.0
"""How long a key may read on while the database is away, so that metrics can say that it is."""
_MAX_KNOWN: Final = 100


class Readers:
    """The keys that may read metrics; safe to use from several threads."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Principal]] = {}
        self._lock = threading.Lock()

    def principal_of(self, authorization: str) -> Principal | None:
        """Return the principal of a key in the header `Authorization` that may read metrics; None without one.

        Costs what `keys.authenticate` costs. While the database is away, keys that were accepted in the last hour are.

        Raises
        ------
        DatabaseError
            It is away, and the key is not known.
        """
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or not token.isascii():
            return None
        digest, now = keys.digest_of(token.strip()), time.monotonic()
        try:
            principal = keys.authenticate(token.strip())
        except DatabaseError:
            until, known = self._known.get(digest, (0.0, None))
            if known is None or until < now:
                raise
            return known
        if principal is None or not _READERS.intersection(principal.scopes):
            self._known.pop(digest, None)
            return None
        with self._lock:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[digest] = now + _KNOWN_SECONDS, principal
        return principal

    def clear(self) -> None:
        """Forget all keys."""
        self._known.clear()


readers = Readers()


def is_of_this_machine(address: str, headers: Mapping[str, str]) -> bool:
    """Return whether a request without a key comes from this machine, and says so: a name may lead a browser here.

    Parameters
    ----------
    address
        Of the client.
    headers
        By their names in lower case.
    """
    if not headers.keys().isdisjoint(("authorization", "x-forwarded-for", "forwarded")):
        return False
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        return ip_address(address).is_loopback and (host == "localhost" or ip_address(host).is_loopback)
    except ValueError:
        return False


def exposition() -> bytes:
    """Return the metrics of this process in the text format of Prometheus: none is of a project."""
    return generate_latest(REGISTRY)


def forget_ended_processes(folder: str) -> None:
    """Remove what processes that have ended say about the present from the folder that all count in.

    Also the empty file of one that ended while it made it, which could not be read.
    """
    for file in Path(folder).glob("*.db"):
        is_of_present = file.name.startswith("gauge_live")
        with suppress(FileNotFoundError):
            if (is_of_present or not file.stat().st_size) and not _is_running(
                int(file.stem.rpartition("_")[2])
            ):
                file.unlink()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # as another account
    return True
