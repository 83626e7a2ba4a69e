"""The backend that `DATABASES` names: as Django's, with waits bounded on the client's side.

Timeouts of the server are no help against a server that does not respond.
"""

from __future__ import annotations

import select
import time
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, Self

import psycopg
import psycopg_pool
from django.db.backends.postgresql import base
from django.db.backends.postgresql.features import DatabaseFeatures
from django.db.backends.postgresql.operations import DatabaseOperations
from psycopg import abc, errors, generators, pq
from psycopg.adapt import Transformer
from psycopg.types.array import ListDumper

from detection.sql.deadlines import remaining_seconds

GETTING_SECONDS: Final = 0.5
"""A request that waits for a connection asks again after this time: only who asks lets the pool try to connect."""
FAIR_SECONDS: Final = 0.25
"""A database that had less time than this for its response is not said to be unavailable."""
_OF_NO_USE: Final = (
    errors.ReadOnlySqlTransaction,
    errors.IdleInTransactionSessionTimeout,
    errors.TransactionTimeout,
)
"""Errors of a connection that cannot be used for writing any more, which psycopg does not count among its own."""
_latest_places: dict[str, tuple[str, str]] = {}
"""The host and port of the latest connection, by the list of hosts."""


class DeadlineExceeded(psycopg.OperationalError):
    """The database did not respond, or gave no connection, within the deadline of the request."""


class DeadlinePassed(DeadlineExceeded):
    """Too little time was left for the database to be blamed for it."""


class ConnectionOfNoUse(psycopg.OperationalError):
    """The server is read-only, as a standby is, or has ended the transaction. The connection is closed."""


class NodeFailed(psycopg.OperationalError):
    """A node failed at a commit, which may have been carried out."""


_FAILED_COMMIT: Final = "could not commit transaction for shard"
"""So begins the error with which Citus reports that; its class is that of errors in the server's own code."""
_ROLLED_BACK: Final = ("23", "40")
"""Classes of errors with which a node that works refuses a commit: a constraint that is checked then, or a conflict."""


class TextListDumper(ListDumper):
    """Dumps a list of texts as one text, at a sixth of the cost of one by one; other lists as Psycopg does."""

    def dump(self, obj: list[Any]) -> abc.Buffer | None:
        """Return the array as the server reads it."""
        if not obj or {*map(type, obj)} != {str}:
            return super().dump(obj)
        text = '","'.join(obj)
        if "\0" in text:
            return super().dump(obj)  # which rejects it
        if "\\" in text or text.count('"') != 2 * len(obj) - 2:
            text = '","'.join(one.replace("\\", r"\\").replace('"', r"\"") for one in obj)
        return f'{{"{text}"}}'.encode()


_FIRST: Final = (
    b"SELECT current_setting('loopguard.closed', true), current_setting('citus.version', true) IS NOT NULL"
)
CLOSED: Final = "loopguard.closed"
"""A setting of the database: while it is `on`, LoopGuard does not use the database, as if it were away."""


class DeadlineConnection(psycopg.Connection[Any]):
    """A connection that is closed when the deadline of its thread passes while it waits for the server.

    Attributes
    ----------
    prepared_names : dict
        The names of statements that `detection.sql.pipeline` has prepared, by text and types of the parameters.
    names_used : int
        The number of names that were ever used.
    has_nodes : bool
        Whether the server is Citus, which may have rows on other nodes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared_names: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self.names_used = 0
        self.has_nodes = False
        self._refused_with = ""
        self.add_notice_handler(self._note)

    def _note(self, said: errors.Diagnostic) -> None:
        """Keep why a node refused a commit, which Citus says as a warning before the error that does not."""
        if said.severity_nonlocalized == "WARNING" and (said.sqlstate or "").startswith(_ROLLED_BACK):
            self._refused_with = said.sqlstate or ""

    @cached_property
    def transformer(self) -> abc.Transformer:
        """Converts parameters and rows of these statements, and keeps what it has looked up for each type."""
        self.adapters.register_dumper(list, TextListDumper)
        return Transformer(self)

    @classmethod
    def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        """Connect; of several hosts, the one that was connected to last is tried first."""
        hosts = str(kwargs.get("host") or "").split(",")
        if len(hosts) == 1 or kwargs.get("hostaddr") or kwargs.get("load_balance_hosts"):
            return super().connect(conninfo, **kwargs)._begun()
        ports = str(kwargs.get("port") or "").split(",")
        places = [*zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=True)]
        listed = str(places)
        latest, failure = _latest_places.get(listed), psycopg.OperationalError("no host is named")
        for place in sorted(places, key=lambda one: one != latest):
            try:
                connection = super().connect(
                    conninfo, **kwargs | {"host": place[0], "port": place[1] or None}
                )
            except psycopg.OperationalError as error:
                failure = error
                continue
            _latest_places[listed] = place
            return connection._begun()
        raise failure

    def _begun(self) -> Self:
        """Ask what the connection is of.

        Raises
        ------
        psycopg.OperationalError
            If the database is closed.
        """
        is_closed, has_nodes = self._ask(_FIRST)
        if is_closed == b"on":
            self.pgconn.finish()
            raise psycopg.OperationalError(
                "the database is closed until `restore` or `distribute` has run to its end"
            )
        self.has_nodes = has_nodes == b"t"
        if self.has_nodes:
            # Which node a statement is for depends on its parameters.
            self._ask(b"SELECT set_config('plan_cache_mode', 'auto', false)")
        return self

    def _ask(self, text: bytes) -> tuple[bytes | None, ...]:
        self.pgconn.send_query(text)
        (answer,) = self.wait(generators.execute(self.pgconn))
        if answer.status != pq.ExecStatus.TUPLES_OK:
            raise errors.error_from_result(answer)
        return tuple(answer.get_value(0, column) for column in range(answer.nfields))

    def look_at(self, error: psycopg.Error) -> None:
        """Raise an error of the server as what it means, where its class does not say that the database is away.

        Raises
        ------
        ConnectionOfNoUse
            After one which means that the connection is of no use: it is closed, and so are the idle ones of its pool.
            New connections find the server that can be written to.
        NodeFailed
            After a commit that did not reach its node.
        psycopg.Error
            After a commit that its node has refused: the error of the node.
        """
        if str(error).startswith(_FAILED_COMMIT):
            refused_with = self._refused_with
            raise (errors.lookup(refused_with) if refused_with else NodeFailed)(str(error)) from error
        if isinstance(error, _OF_NO_USE):
            self.pgconn.finish()
            pool = getattr(self, "_pool", None)
            if pool is not None and isinstance(error, errors.ReadOnlySqlTransaction):
                pool.drain()
            raise ConnectionOfNoUse(str(error)) from error

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
        remaining = remaining_seconds() if timeout is None else timeout
        self._refused_with = ""  # An earlier warning is not about a commit that fails now.
        try:
            return super().wait(gen, interval, remaining)
        except errors._WaitTimeout:
            if timeout is not None:
                raise
            # The rest of the answer may still come, so the connection is of no use any more. The server notices
            # that it is closed, gives up what it waits for and rolls back.
            self.pgconn.finish()
            raise _missed(remaining or 0.0, "no response within the deadline of the request") from None
        except psycopg.Error as error:
            self.look_at(error)
            raise


class TenantFeatures(DatabaseFeatures):
    """Those of PostgreSQL with keys of tenants' tables that are more than Django's."""

    def allows_group_by_selected_pks_on_model(self, model: Any) -> bool:
        """Return whether the other columns of a row follow from Django's key, for the database."""
        return not hasattr(model, "project_id") and super().allows_group_by_selected_pks_on_model(model)


class TenantOperations(DatabaseOperations):
    """Those of PostgreSQL with compilers of our own."""

    compiler_module = "detection.sql.postgresql.compiler"


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's wrapper, with such connections and a bounded wait for one of the pool.

    Attributes
    ----------
    compiled_queries : list of Query
        The queries whose text is being made, the outermost first.
    deferred : DeferredTransaction or None
        What begins before the next statement; see `detection.sql.pipeline`.
    """

    features_class = TenantFeatures
    ops_class = TenantOperations
    deferred: Any = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.compiled_queries: list[Any] = []

    @property
    def in_atomic_block(self) -> bool:
        """Whether a transaction has begun. Whoever asks, for a nested one or a hook, begins the deferred one."""
        self._begin_deferred()
        return self._in_atomic_block

    @in_atomic_block.setter
    def in_atomic_block(self, value: bool) -> None:
        self._in_atomic_block = value

    def schema_editor(self, *arguments: Any, **options: Any) -> Any:
        """Return an editor that lets the keys of tenants' tables begin with the project."""
        from .schema import TenantSchemaEditor  # needs the models, which need the settings of this module

        return TenantSchemaEditor(self, *arguments, **options)

    @property
    def pool(self) -> Any:
        """Return the pool of the settings of this moment, of connections with deadlines; None where there is none."""
        if options := self.settings_dict["OPTIONS"].get("pool"):
            options["connection_class"] = DeadlineConnection
        return super().pool

    def cursor(self) -> Any:
        """Return a cursor. A deferred transaction begins first."""
        self._begin_deferred()
        return super().cursor()

    def chunked_cursor(self) -> Any:
        """Return a cursor of the server. A deferred transaction begins first."""
        self._begin_deferred()
        return super().chunked_cursor()

    def _begin_deferred(self) -> None:
        if self.deferred is not None:
            self.deferred.begin()

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """Return a connection of the pool, or a new one where there is none."""
        self.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        pool = self.pool
        if pool is None:
            return DeadlineConnection.connect(**conn_params)
        pool.open()
        given, until = remaining_seconds(), time.monotonic() + pool.timeout
        while True:
            connection = _from_pool(pool, given, until)
            if not connection.has_ended():
                return connection
            pool.putconn(connection)  # It is replaced by a new one.


def _from_pool(pool: Any, given: float | None, until: float) -> Any:
    """Return a connection of the pool, or raise the reason why there is none.

    Parameters
    ----------
    given
        The time that was left for the database at first.
    until
        The end of the wait if there is no deadline before.
    """
    while True:
        remaining, left = remaining_seconds(), until - time.monotonic()
        if given is not None and not remaining:
            raise _missed(given, "no connection within the deadline of the request")
        if left <= 0:
            raise psycopg.OperationalError(f"no connection within {pool.timeout:g} seconds")
        with suppress(psycopg_pool.PoolTimeout):
            return pool.getconn(timeout=min(GETTING_SECONDS, left, left if remaining is None else remaining))


def _missed(given: float, reason: str) -> DeadlineExceeded:
    """Return the error of a deadline that has passed while the database had this many seconds."""
    return DeadlinePassed(reason) if given < FAIR_SECONDS else DeadlineExceeded(reason)
