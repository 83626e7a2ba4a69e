"""Statements that travel together, on a real server."""

from typing import Any

import psycopg
import pytest
from django.db import DataError, IntegrityError, OperationalError, connection, transaction
from django.db.utils import ProgrammingError
from psycopg import pq

from detection.models import Project
from detection.sql import pipeline
from detection.sql.deadlines import deadline
from detection.sql.pipeline import (
    DeferredTransaction,
    OutdatedError,
    Statement,
    Writes,
    fetch,
    pipelined_transaction,
    send,
)
from tests.support.statements import round_trips, sent_messages
from tests.support.threads import in_thread, wait_until_blocked

pytestmark = [pytest.mark.servers, pytest.mark.django_db(transaction=True)]

RENAME = "UPDATE detection_project SET name = %s WHERE slug = 'piped'"
LOCK = Statement("SELECT id FROM detection_project WHERE slug = 'piped' FOR NO KEY UPDATE")
NAME = Statement("SELECT name FROM detection_project WHERE slug = 'piped'")


@pytest.fixture(autouse=True)
def project(transactional_db):
    return Project.objects.create(slug="piped", name="before")


def is_in_transaction():
    return connection.connection.pgconn.transaction_status != pq.TransactionStatus.IDLE


def rename_and_fail():
    send(Statement(RENAME, ("lost",)))
    fetch("SELECT 1 / 0")


def end_backend(process_id):
    """End a backend from another connection, and wait until it is gone."""
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as other:
        assert other.execute("SELECT pg_terminate_backend(%s, 10000)", (process_id,)).fetchone() == (True,)


def test_each_statement_has_its_rows():
    assert send(Statement("SELECT %s::int, %s::text", (1, "a")), Statement("SELECT 2 WHERE false"), NAME) == [
        [(1, "a")],
        [],
        [("before",)],
    ]


def test_a_transaction_takes_two_round_trips_with_its_begin_and_commit():
    with sent_messages() as messages, pipelined_transaction(LOCK, NAME) as rows:
        assert is_in_transaction()
        writes = Writes()
        writes.add(RENAME, ["after"])
        writes.send(commits=True)
        assert not is_in_transaction()
    assert rows[1] == [("before",)]
    assert Project.objects.get().name == "after"
    assert round_trips(messages) == 2


def test_a_transaction_of_one_round_trip_is_one_without_begin_and_commit():
    rename = Statement(RENAME, ("after",))
    with pytest.raises(DataError), transaction.atomic():
        send(rename, Statement("SELECT 1 / 0"), commits=True)
    assert fetch(NAME.text) == [("before",)]
    with sent_messages() as messages, transaction.atomic():
        send(rename, NAME, commits=True)
        assert not is_in_transaction()
    assert fetch(NAME.text) == [("after",)]
    assert round_trips(messages) == 1
    assert not any("COMMIT" in message for message in messages)


def test_on_nodes_several_statements_have_their_begin_and_commit(server_with_nodes, monkeypatch):
    """What a server with nodes is sent together is one transaction for itself, and not for them."""
    rename = Statement(RENAME, ("after",))
    with pytest.raises(DataError), transaction.atomic():
        send(rename, Statement("SELECT 1 / 0"), commits=True)
    assert fetch(NAME.text) == [("before",)]
    sent: list[str] = []
    add = pipeline._Exchange.add

    def noted(exchange, statement):
        sent.append(statement.text)
        add(exchange, statement)

    monkeypatch.setattr(pipeline._Exchange, "add", noted)
    for statements in ((rename, NAME), (rename,)):
        with transaction.atomic():
            send(*statements, commits=True)
            assert not is_in_transaction()
    assert sent == ["BEGIN", RENAME, NAME.text, "COMMIT", RENAME]
    assert fetch(NAME.text) == [("after",)]


def test_a_statement_after_a_lock_sees_what_the_holder_committed(project):
    found = []

    def wait_and_read():
        with pipelined_transaction(LOCK, NAME) as rows:
            found.extend(rows)

    with transaction.atomic():
        Project.objects.select_for_update().get()
        waiter = in_thread(wait_and_read)
        wait_until_blocked()
        Project.objects.update(name="after")
    waiter.result()
    assert found == [[(project.pk,)], [("after",)]]


def test_a_deferred_lock_is_sent_before_the_first_statement_and_not_without_one(project):
    with sent_messages() as messages, DeferredTransaction(LOCK, [(project.pk,)]):
        pass
    assert messages == []
    with sent_messages() as messages, DeferredTransaction(LOCK, [(project.pk,)]) as lock:
        assert fetch(NAME.text) == [("before",)]
        assert is_in_transaction()
        assert not lock.is_pending
    assert round_trips(messages) == 3  # with the commit


@pytest.mark.parametrize(
    "use",
    [
        lambda: fetch(NAME.text),
        lambda: send(Statement(RENAME, ("lost",)), commits=True),
        lambda: Project.objects.update(name="lost"),
        lambda: transaction.on_commit(lambda: rename_and_fail()),
        lambda: transaction.atomic().__enter__(),
    ],
)
def test_nothing_is_done_under_a_lock_that_found_something_else(use):
    with pytest.raises(OutdatedError), DeferredTransaction(LOCK, [(0,)]):
        use()
    assert not is_in_transaction()
    assert fetch(NAME.text) == [("before",)]


@pytest.mark.parametrize("name", ["before", "other"])
def test_writes_that_depend_on_another_one_are_done_with_it_or_not_at_all(servers_of_both_kinds, name):
    writes = Writes()
    writes.add("INSERT INTO detection_project (slug) SELECT %s WHERE false", ["x"], ends_in_condition=True)
    writes.add(
        "UPDATE detection_project SET first_event_at = now() WHERE slug = %s",
        ["also"],
        ends_in_condition=True,
    )
    Project.objects.create(slug="also", name="also")
    with transaction.atomic():
        rows = writes.send_after(Statement(f"{RENAME} AND name = %s RETURNING name", ("after", name)))
    is_done = name == "before"
    assert rows == ([("after",)] if is_done else [])
    assert Project.objects.filter(name="after").exists() == is_done
    assert Project.objects.filter(first_event_at=None).count() == (1 if is_done else 2)


def test_an_error_rolls_everything_back_and_the_connection_stays_usable():
    with pytest.raises(DataError, match="division by zero"), pipelined_transaction(LOCK):
        send(
            Statement(RENAME, ("lost",)),
            Statement("SELECT 1 / 0"),
            Statement(RENAME, ("lost",)),
            commits=True,
        )
    assert not is_in_transaction()
    assert fetch(NAME.text) == [("before",)]


def test_a_text_that_failed_can_be_sent_again():
    for _ in range(2):
        with pytest.raises(ProgrammingError):
            send(NAME, Statement("SELECT nothing FROM nowhere"))
    assert send(NAME, Statement("SELECT %s::int", (2,))) == [[("before",)], [(2,)]]


def test_an_error_in_the_block_rolls_back_what_was_sent():
    with pytest.raises(DataError), pipelined_transaction(LOCK):
        rename_and_fail()
    assert fetch(NAME.text) == [("before",)]


def test_inside_another_transaction_nothing_is_committed():
    with transaction.atomic():
        with pipelined_transaction(LOCK):
            send(Statement(RENAME, ("lost",)), commits=True)
            assert is_in_transaction()
        assert fetch(NAME.text) == [("lost",)]
        transaction.set_rollback(True)
    assert fetch(NAME.text) == [("before",)]


def test_a_transaction_that_is_marked_as_failed_is_not_committed():
    with transaction.atomic():
        transaction.set_rollback(True)
        send(Statement(RENAME, ("lost",)), commits=True)
    assert fetch(NAME.text) == [("before",)]


def test_hooks_run_after_the_commit():
    seen = []
    with pipelined_transaction(LOCK):
        transaction.on_commit(lambda: seen.append(is_in_transaction()))
        send(Statement(RENAME, ("after",)), commits=True)
        assert seen == []
    assert seen == [False]


def test_a_statement_is_prepared_once_whatever_the_size_of_its_integers():
    text = "SELECT %s::bigint + 1"
    fetch(text, (1,))
    with sent_messages() as messages:
        assert fetch(text, (2**40,)) == [(2**40 + 1,)]
    assert not any("\tParse\t" in message for message in messages)


def test_beyond_the_limit_statements_are_sent_unprepared(monkeypatch):
    monkeypatch.setattr(pipeline, "MAX_PREPARED", len(connection.connection.prepared_names))
    before = dict(connection.connection.prepared_names)
    assert fetch("SELECT %s::text || 'x'", ("y",)) == [("yx",)]
    assert connection.connection.prepared_names == before


@pytest.mark.promise("REL-08")
@pytest.mark.parametrize("times", [1, 5])
def test_a_connection_that_the_server_ended_is_an_error_and_the_next_one_works(times):
    for _ in range(times):
        end_backend(connection.connection.info.backend_pid)
        with pytest.raises(OperationalError):
            send(NAME, Statement("SELECT %s::int", (1,)), NAME)
        connection.close()
        assert fetch(NAME.text) == [("before",)]


def test_a_connection_that_the_server_ends_while_a_lock_is_waited_for_is_an_error(project):
    found: list[Any] = []

    def wait():
        try:
            with pipelined_transaction(NAME, LOCK, NAME):
                found.append("locked")
        except OperationalError as error:
            found.append(error)
        connection.close()

    with transaction.atomic():
        Project.objects.select_for_update().get()
        waiter = in_thread(wait)
        end_backend(wait_until_blocked())
        waiter.result()
    assert len(found) == 1
    assert isinstance(found[0], OperationalError)


@pytest.mark.parametrize("is_pipelined", [True, False])
def test_a_node_that_fails_at_a_commit_is_a_database_that_is_away(is_pipelined):
    """Citus reports it as an error in its own code, which is no fault of ours."""
    text = (
        "DO $$ BEGIN RAISE 'could not commit transaction for shard 102019 on at least one active node'"
        " USING ERRCODE = 'internal_error'; END $$"
    )
    with pytest.raises(OperationalError), connection.cursor() as cursor:
        send(Statement(text)) if is_pipelined else cursor.execute(text)
    assert fetch(NAME.text) == [("before",)]


@pytest.mark.parametrize("is_pipelined", [True, False])
@pytest.mark.parametrize(
    ("state", "kind"),
    [("23503", IntegrityError), ("40P01", OperationalError), ("08006", OperationalError)],
    ids=["a reference fails", "a conflict", "no connection"],
)
def test_a_commit_that_its_node_refuses_has_the_error_of_the_node(state, kind, is_pipelined):
    """Citus warns with the error of the node, and then says that it could not commit."""
    commit = (
        f"DO $$ BEGIN RAISE WARNING 'of the node' USING ERRCODE = '{state}';"
        " RAISE 'could not commit transaction for shard 102019 on at least one active node'"
        " USING ERRCODE = 'internal_error'; END $$"
    )
    for text, is_named in (
        (commit, state != "08006"),
        (commit.replace("RAISE WARNING", "RAISE NOTICE"), False),
    ):
        with pytest.raises(kind if is_named else OperationalError) as found, connection.cursor() as cursor:
            send(Statement(text)) if is_pipelined else cursor.execute(text)
        assert getattr(found.value.__cause__, "sqlstate", None) == (state if is_named else None)
    assert fetch(NAME.text) == [("before",)]


@pytest.mark.parametrize("is_pipelined", [True, False])
def test_an_earlier_refusal_is_not_taken_for_the_reason_of_a_commit_that_fails(is_pipelined):
    """A warning about a reference that fails, and a node that fails later: the commit may have been carried out."""
    warning = "DO $$ BEGIN RAISE WARNING 'of the node' USING ERRCODE = '23503'; END $$"
    failure = (
        "DO $$ BEGIN RAISE 'could not commit transaction for shard 102019' USING ERRCODE = 'XX000'; END $$"
    )

    def execute(text):
        with connection.cursor() as cursor:
            send(Statement(text)) if is_pipelined else cursor.execute(text)

    execute(warning)
    with pytest.raises(OperationalError):
        execute(failure)


def test_large_values_pass_in_both_directions():
    text = "ö" * 3_000_000
    assert send(*[Statement("SELECT %s::text", (text,))] * 3) == [[(text,)]] * 3


def test_a_lock_is_waited_for_until_the_deadline_and_not_longer():
    found: list[Any] = []

    def wait():
        try:
            with deadline(0.0), pipelined_transaction(LOCK):
                found.append("locked")
        except OperationalError as error:
            found.append(str(error))
        connection.close()
        found.append(fetch(NAME.text))

    with transaction.atomic():
        Project.objects.select_for_update().get()
        in_thread(wait).result()
    assert found == ["no response within the deadline of the request", [("before",)]]


@pytest.mark.parametrize(
    "texts",
    [
        [""],
        ["a"],
        ["", "x y", "NULL", "a,b", "{}", "\t\n"],
        ['"', '","', '"a"'],
        ["\\", '\\"', "\\N"],
        ["\u00fc", "\U0001f501"],
        [None, "a"],
        [],
    ],
)
def test_lists_of_texts_arrive_as_they_are(texts):
    assert fetch("SELECT %s::text[]", [texts]) == [(texts,)]


def test_a_list_with_a_text_that_the_server_cannot_hold_is_rejected():
    with pytest.raises(DataError, match="NUL"):
        fetch("SELECT %s::text[]", [["a", "b\0"]])
