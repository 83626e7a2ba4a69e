"""Counts the statements that reach the database server, whatever layer sends them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from django.db import connection
from psycopg.pq import Trace


@contextlib.contextmanager
def sent_messages() -> Iterator[list[str]]:
    """Yield a list of the messages to the server, which is filled once the block has ended."""
    connection.ensure_connection()
    pgconn = connection.connection.pgconn
    sent: list[str] = []
    with tempfile.TemporaryFile("w+") as file:
        pgconn.trace(file.fileno())
        pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)
        try:
            yield sent
        finally:
            pgconn.untrace()
            file.seek(0)
            sent += [line for line in file if line.startswith("F\t")]


def round_trips(messages: list[str]) -> int:
    """Return how often the client waited for the server."""
    return sum(message.split("\t")[2].strip() in ("Sync", "Query") for message in messages)
