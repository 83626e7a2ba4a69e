"""Sends the statements that every call needs: prepared on the server, and several of them in one round trip.

Goes below Django's cursors, which bind parameters into the text and so have each statement parsed and planned anew. That is
half of what a verdict costs the database. Errors are Django's, and the transaction in hand is the caller's. Statements for
other occasions belong in the ORM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from django.db import connection

Rows = list[tuple[Any, ...]]


class Statements:
    """Statements that wait to be sent together, in order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str, Sequence[Any]]] = []

    def add(self, text: str, parameters: Sequence[Any] = ()) -> None:
        """Put a statement behind the others; its text must be the same each time, for it is prepared under it."""
        self._waiting.append((text, parameters))

    def send(self) -> None:
        """Send what waits; what they return is not read."""
        self._execute()

    def fetch(self) -> list[Rows]:
        """Send what waits and return the rows of each statement."""
        return [cursor.fetchall() for cursor in self._execute()]

    def _execute(self) -> list[psycopg.Cursor[Any]]:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return []
        connection.ensure_connection()
        raw: psycopg.Connection[Any] = connection.connection
        cursors = [psycopg.Cursor(raw) for _ in waiting]
        with connection.wrap_database_errors:
            if len(waiting) == 1:
                cursors[0].execute(waiting[0][0], waiting[0][1], prepare=True)
            else:
                with raw.pipeline():
                    for cursor, (text, parameters) in zip(cursors, waiting, strict=True):
                        cursor.execute(text, parameters, prepare=True)
        return cursors


def fetch(text: str, parameters: Sequence[Any] = ()) -> Rows:
    """Send one statement and return its rows."""
    statements = Statements()
    statements.add(text, parameters)
    return statements.fetch()[0]
