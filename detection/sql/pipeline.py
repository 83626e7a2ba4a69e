"""Sends the statements that every call needs: prepared on the server, and in as few round trips as possible.

Goes below Django's cursors, which bind parameters into the text, so that each statement is parsed and planned anew, and
which wait for each answer by itself. The beginning of a transaction travels with its first statements here, and its
commit with its last ones. Errors are Django's. Statements for other occasions belong in the ORM.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction
from psycopg import errors, pq
from psycopg.adapt import PyFormat
from psycopg.types.numeric import Int8
from psycopg.waiting import Ready, Wait

from detection.sql.postgresql.base import DatabaseWrapper, DeadlineConnection

Rows = list[tuple[Any, ...]]
MAX_PREPARED: Final = 200
"""Statements that a connection keeps prepared; further ones are planned each time."""
_int8 = partial(int.__new__, Int8)
"""Makes one without the function of the class, which takes longer than binding it."""
_FORMATS: Final = pq.Format.TEXT, pq.Format.BINARY


class Statement(NamedTuple):
    """A statement with ``%s`` for each parameter. Use the same text each time: it identifies the prepared statement.

    `binary` is the form of its rows: long byte strings are half as long in it.
    """

    text: str
    parameters: Sequence[Any] = ()
    binary: bool = False


class Writes:
    """Writes that are collected and sent together, as one statement.

    None of them sees what another one does, and no two may touch the same row. A server with nodes gets one statement
    for each write, because it would carry out the parts of a large one by several steps each.
    """

    def __init__(self) -> None:
        self._writes: list[Statement] = []
        self.can_depend = True
        """Whether all of them can be sent by `send_after`."""
        self.has_nodes = has_nodes()

    def add(self, text: str, parameters: Sequence[Any], *, ends_in_condition: bool = False) -> None:
        """Add a write, given like a `Statement`.

        Parameters
        ----------
        ends_in_condition
            Whether another condition can be added at the end of the text.
        """
        self._writes.append(Statement(text, parameters))
        self.can_depend &= ends_in_condition

    def send_after(self, first: Statement) -> Rows:
        """Send the collected writes with one they depend on, and commit: nothing is written unless that returns a row.

        Returns
        -------
        Rows
            The rows of that write.
        """
        writes, self._writes = self._writes, []
        if self.has_nodes:
            with transaction.atomic():
                (rows,) = send(first)
                if rows:
                    send(*writes, commits=True)
            return rows
        named = "".join(
            f", w{number} AS ({write.text} AND EXISTS (SELECT FROM first_write))"
            for number, write in enumerate(writes)
        )
        text = f"WITH first_write AS ({first.text}){named} SELECT * FROM first_write"  # noqa: S608 - statements of our own
        return send(Statement(text, _parameters(first, *writes)), commits=True)[0]

    def send(self, *, commits: bool = False) -> Rows:
        """Send what waits.

        Parameters
        ----------
        commits
            Whether the transaction ends with these writes, see `send`.

        Returns
        -------
        Rows
            What the last of them returns.
        """
        writes, self._writes = self._writes, []
        if not writes:
            return []
        if self.has_nodes:
            return send(*writes, commits=commits)[-1]
        *others, last = writes
        named = ", ".join(f"w{number} AS ({write.text})" for number, write in enumerate(others))
        text = f"WITH {named} {last.text}" if others else last.text
        return send(Statement(text, _parameters(*writes)), commits=commits)[0]


def has_nodes() -> bool:
    """Return whether the server may have rows on other nodes."""
    return bool(_own_connection().connection.has_nodes)


def _own_connection() -> DatabaseWrapper:
    """Return the connected wrapper of the thread: Django's `connection` finds it anew for each attribute."""
    own = cast("DatabaseWrapper", connections[DEFAULT_DB_ALIAS])
    if own.connection is None:
        own.ensure_connection()
    return own


def _parameters(*statements: Statement) -> list[Any]:
    return [value for statement in statements for value in statement.parameters]


def fetch(text: str, parameters: Sequence[Any] = ()) -> Rows:
    """Send one statement and return its rows."""
    return send(Statement(text, parameters))[0]


@contextmanager
def pipelined_transaction(*statements: Statement) -> Iterator[list[Rows]]:
    """Begin a transaction, or a savepoint of the surrounding one, with its first statements; see `send`.

    Yields
    ------
    list of Rows
        The rows of each statement.
    """
    with transaction.atomic():
        yield send(*statements)


class OutdatedError(DatabaseError):
    """An assumption of a transaction no longer holds. Nothing was written."""


class DeferredTransaction:
    """A transaction that begins with a lock when something has to be read, for work that may need only a last write.

    Until then the connection has none: a last write that makes sure of the same by itself is a transaction of its own.
    Must be the outermost one. Use as a context manager.

    Parameters
    ----------
    lock, expected
        The statement that it begins with, and the rows of that. With other rows, the first statement raises
        `OutdatedError`, and so does Django's first cursor, nested transaction or hook.
    """

    def __init__(self, lock: Statement, expected: Rows) -> None:
        self._lock, self._expected = lock, expected
        self._own = _own_connection()
        self._atomic: transaction.Atomic | None = None

    def __enter__(self) -> Self:
        """Put it before the next statement of the thread."""
        self._own.deferred = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the transaction, if it has begun."""
        self.drop()
        if self._atomic is not None:
            self._atomic.__exit__(kind, error, trace)

    @property
    def is_pending(self) -> bool:
        """Whether it has not begun yet."""
        return self._own.deferred is self

    def drop(self) -> None:
        """Discard the lock: the next statement ensures the same by itself."""
        self._own.deferred = None

    def begin(self) -> None:
        """Begin the transaction, and send the lock by itself: a write beside it could fail before its rows are known.

        Raises
        ------
        OutdatedError
            If it returns other rows than expected.
        """
        self.drop()
        atomic = transaction.atomic()
        atomic.__enter__()
        self._atomic = atomic
        if send(self._lock) != [self._expected]:
            raise OutdatedError


def send(*statements: Statement, commits: bool = False) -> list[Rows]:
    """Send statements together, in one round trip.

    The server runs them one after the other. Each has a snapshot of its own, so it sees what others committed while the
    one before it waited for a lock. One that fails ends the transaction, and those after it are not run.

    Parameters
    ----------
    commits
        Whether nothing follows in the outermost transaction: then its commit travels along. The transaction must be
        left without another statement. Ignored inside a savepoint, and when Django has marked the transaction as
        failed.

    Returns
    -------
    list of Rows
        The rows of each statement; none for one that returns nothing.
    """
    own = _own_connection()
    if own.deferred is not None:
        own.deferred.begin()
    raw: DeadlineConnection = own.connection
    with own.wrap_database_errors:
        begins = not raw.autocommit and raw.pgconn.transaction_status == pq.TransactionStatus.IDLE
        ends = commits and own.in_atomic_block and not own.savepoint_ids and not own.needs_rollback
        if begins and ends and not (raw.has_nodes and len(statements) > 1):
            # The server makes one transaction of what is sent together, but sends nodes each statement by itself.
            begins = ends = False
        exchange = _Exchange(raw)
        if begins:
            exchange.add(Statement("BEGIN"))
        for statement in statements:
            exchange.add(statement)
        if ends:
            exchange.add(Statement("COMMIT"))
        rows = exchange.run()
    return rows[begins : len(rows) - ends]


class _Exchange:
    """One round trip of a connection: statements, and then their answers.

    Psycopg's own pipelines send and wait for each statement by itself, and give up the interpreter each time.
    """

    def __init__(self, raw: DeadlineConnection) -> None:
        self._raw, self._pgconn = raw, raw.pgconn
        self._transformer = raw.transformer
        self._statements: list[Statement] = []
        self._prepared: list[tuple[tuple[str, tuple[int, ...]], bytes]] = []
        """What this round trip prepares: known to the connection once it succeeded."""

    def add(self, statement: Statement) -> None:
        """Put a statement after the others."""
        self._statements.append(statement)

    def run(self) -> list[Rows]:
        """Send everything and return the rows of each statement.

        Raises
        ------
        psycopg.Error
            That of the first statement that failed.
        """
        pgconn = self._pgconn
        bound = [(one.text, *self._bind(one.parameters), _FORMATS[one.binary]) for one in self._statements]
        try:
            pgconn.enter_pipeline_mode()
            counts = [self._send(*one) for one in bound]
            pgconn.pipeline_sync()
            answers = self._raw.wait(self._receive())
            pgconn.exit_pipeline_mode()
        except BaseException:
            pgconn.finish()  # Answers may still come, so the connection is of no use any more.
            raise
        for answer in answers:
            if answer.status == pq.ExecStatus.FATAL_ERROR:
                error = errors.error_from_result(answer, encoding=self._raw.info.encoding)
                self._raw.look_at(error)
                raise error
        self._raw.prepared_names.update(self._prepared)
        places, last = [], -1
        for count in counts:
            last += count
            places.append(last)
        return [self._rows(answers[place]) for place in places]

    def _bind(self, parameters: Sequence[Any]) -> tuple[Sequence[Any], tuple[int, ...], Sequence[pq.Format]]:
        """Return the values, types and formats to send."""
        if not parameters:
            return (), (), ()
        # One type for all integers: a statement is prepared for the types of its parameters.
        values = [_int8(value) if type(value) is int else value for value in parameters]
        sent = self._transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
        return sent, self._transformer.types or (), self._transformer.formats or ()

    def _send(
        self,
        text: str,
        values: Sequence[Any],
        types: tuple[int, ...],
        formats: Sequence[pq.Format],
        row_format: pq.Format,
    ) -> int:
        """Send a statement; return the number of its answers."""
        pgconn, raw = self._pgconn, self._raw
        name = raw.prepared_names.get((text, types))
        if name is not None:
            pgconn.send_query_prepared(name, values, formats, row_format)
            return 1
        if len(raw.prepared_names) >= MAX_PREPARED:
            pgconn.send_query_params(_numbered(text), values, types, formats, row_format)
            return 1
        # A failed round trip leaves behind what it prepared, so no name is used twice.
        raw.names_used += 1
        name = b"pipeline_%d" % raw.names_used
        self._prepared.append(((text, types), name))
        pgconn.send_prepare(name, _numbered(text), types)
        pgconn.send_query_prepared(name, values, formats, row_format)
        return 2

    def _receive(self) -> Generator[Wait, Ready | int, list[pq.abc.PGresult]]:
        """Finish sending and collect the answers, with one wait where they come at once."""
        pgconn = self._pgconn
        answers: list[pq.abc.PGresult] = []
        while pgconn.flush():
            if (yield Wait.RW) & Ready.R:
                pgconn.consume_input()
        while True:
            while pgconn.is_busy():
                if (yield Wait.R):
                    pgconn.consume_input()
            answer = pgconn.get_result()
            if answer is None:
                continue
            if answer.status == pq.ExecStatus.PIPELINE_SYNC:
                return answers
            answers.append(answer)
            pgconn.get_result()  # None, which ends this answer and needs no more input

    def _rows(self, answer: pq.abc.PGresult) -> Rows:
        if not answer.ntuples:
            return []
        self._transformer.set_pgresult(answer)
        return self._transformer.load_rows(0, answer.ntuples, tuple)


@lru_cache(maxsize=2 * MAX_PREPARED)
def _numbered(text: str) -> bytes:
    """Return the text with numbered parameters."""
    first, *others = text.split("%s")
    return "".join((first, *(f"${number}{part}" for number, part in enumerate(others, start=1)))).encode()
