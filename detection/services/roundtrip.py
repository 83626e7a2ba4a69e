"""Sends several statements to the database in one round trip.

Works because parameters are bound on our side (Django's default for PostgreSQL), so that statements travel as one text.
Inside a transaction every statement still sees what was committed until it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection


class Statements:
    """Statements that wait to be sent together, in order."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._parameters: list[Any] = []

    def add(self, text: str, parameters: Sequence[Any] = ()) -> None:
        """Put a statement behind the others."""
        self._texts.append(text)
        self._parameters.extend(parameters)

    def send(self) -> None:
        """Send what waits; what they return is not read."""
        if self._texts:
            with connection.cursor() as cursor:
                cursor.execute("; ".join(self._texts), self._parameters)
            self._texts, self._parameters = [], []

    def fetch(self) -> list[list[tuple[Any, ...]]]:
        """Send what waits and return the rows of each statement."""
        with connection.cursor() as cursor:
            cursor.execute("; ".join(self._texts), self._parameters)
            found = [cursor.fetchall()]
            while cursor.nextset():
                found.append(cursor.fetchall())
        self._texts, self._parameters = [], []
        return found
