"""Sends the statements that every call needs: prepared on the server, and several writes as one statement.

Goes below Django's cursors, which bind parameters into the text and so have each statement parsed and planned anew. That,
and the waiting for one answer after another, is most of what a verdict costs the database. Errors are Django's, and the
transaction in hand is the caller's. Statements for other occasions belong in the ORM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from django.db import connection

Rows = list[tuple[Any, ...]]


class Writes:
    """Writes that wait to be sent together, as one statement.

    None of them sees what another one does, and no two may touch the same row.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._parameters: list[Any] = []

    def add(self, text: str, parameters: Sequence[Any]) -> None:
        """Put a write beside the others; its text must be the same each time, for it is prepared under it."""
        self._texts.append(text)
        self._parameters += parameters

    def send(self) -> None:
        """Send what waits."""
        texts, parameters = self._texts, self._parameters
        self._texts, self._parameters = [], []
        if texts:
            *others, last = texts
            named = ", ".join(f"w{number} AS ({text})" for number, text in enumerate(others))
            _execute(f"WITH {named} {last}" if others else last, parameters)


def fetch(text: str, parameters: Sequence[Any] = ()) -> Rows:
    """Send one statement and return its rows."""
    return _execute(text, parameters).fetchall()


def _execute(text: str, parameters: Sequence[Any]) -> psycopg.Cursor[Any]:
    connection.ensure_connection()
    raw: psycopg.Connection[Any] = connection.connection
    cursor = psycopg.Cursor(raw)
    with connection.wrap_database_errors:
        cursor.execute(text, parameters, prepare=True)
    return cursor
