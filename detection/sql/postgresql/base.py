"""The backend that `DATABASES` names: as Django's, with waits bounded on the client's side.

Timeouts of the server are no help against a server that does not respond.
"""

from __future__ import annotations

import select
from functools import cached_property
from typing import Any

import psycopg
from django.db import DEFAULT_DB_ALIAS
from django.db.backends.postgresql import base
from psycopg import abc, errors, pq
from psycopg.adapt import Transformer

from detection.sql.deadlines import remaining_seconds


class DeadlineExceeded(psycopg.OperationalError):
    """The database did not respond within the deadline of the request. The connection is closed."""


class DeadlineConnection(psycopg.Connection[Any]):
    """A connection that is closed when the deadline of its thread passes while it waits for the server.

    Attributes
    ----------
    prepared_names : dict
        The names of statements that `detection.sql.pipeline` has prepared, by text and types of the parameters.
    names_used : int
        The number of names that were ever used.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared_names: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self.names_used = 0

    @cached_property
    def transformer(self) -> abc.Transformer:
        """Converts parameters and rows of these statements, and keeps what it has looked up for each type."""
        return Transformer(self)

    def has_ended(self) -> bool:
        """Return whether the server has ended the connection while it was idle, without asking the server.

        What a server says unasked is a notice, or the reason of the end and the end.
        """
        said = select.poll()
        try:
            said.register(self.pgconn.socket, select.POLLIN)
            while said.poll(0):
                self.pgconn.consume_input()
        except psycopg.OperationalError:
            return True
        return False

    def set_autocommit(self, value: bool) -> None:
        """Set autocommit. Outside of a transaction nothing is sent for that, so nothing has to be waited for."""
        if self.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            self._autocommit = value
        else:
            super().set_autocommit(value)

    def commit(self) -> None:
        """Commit, unless the last statements of the transaction have done so."""
        if self.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            super().commit()

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for the server, until the deadline at the latest."""
        remaining = remaining_seconds() if timeout is None else None
        if remaining is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, remaining)
        except errors._WaitTimeout:
            # The rest of the answer may still come, so the connection is of no use any more. The server notices
            # that it is closed, gives up what it waits for and rolls back.
            self.pgconn.finish()
            raise DeadlineExceeded("no response within the deadline of the request") from None


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's wrapper, with such connections and a bounded wait for one of the pool.

    Attributes
    ----------
    deferred : DeferredLock or None
        What comes before the next statement; see `detection.sql.pipeline.deferred_transaction`.
    """

    deferred: Any = None

    def __init__(self, settings_dict: dict[str, Any], alias: str = DEFAULT_DB_ALIAS) -> None:
        super().__init__(settings_dict, alias)
        if pool := settings_dict["OPTIONS"].get("pool"):
            pool["connection_class"] = DeadlineConnection

    def cursor(self) -> Any:
        """Return a cursor. A deferred statement is sent first."""
        self._send_deferred()
        return super().cursor()

    def chunked_cursor(self) -> Any:
        """Return a cursor of the server. A deferred statement is sent first."""
        self._send_deferred()
        return super().chunked_cursor()

    def _send_deferred(self) -> None:
        if self.deferred is not None:
            self.deferred.send()

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Return a connection of the pool, or a new one where there is none."""
        self.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        pool = self.pool
        if pool is None:
            return DeadlineConnection.connect(**conn_params)
        pool.open()
        connection = pool.getconn(timeout=_seconds_left(pool))
        while connection.has_ended():
            pool.putconn(connection)  # It is replaced by a new one.
            connection = pool.getconn(timeout=_seconds_left(pool))
        return connection


def _seconds_left(pool: Any) -> float:
    remaining = remaining_seconds()
    timeout: float = pool.timeout
    return timeout if remaining is None else min(remaining, timeout)
