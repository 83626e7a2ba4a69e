"""The database after a test that commits, while a request of it still runs."""

import threading
from contextlib import suppress

import pytest
from django.db import OperationalError, connection, transaction

from detection.models import Project
from tests.support import emptying
from tests.support.patience import PATIENCE_SECONDS
from tests.support.projects import make_project
from tests.support.threads import in_thread, wait_until_blocked


@pytest.mark.django_db(transaction=True)
def test_tables_are_emptied_after_a_request_that_locks_them_in_another_order():
    make_project()
    lock, _ = emptying._statements()
    first, *_, last = lock.removeprefix("LOCK TABLE ").partition(" IN ")[0].split(", ")
    is_held, is_waited_for = threading.Event(), threading.Event()

    def request():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {last} IN ROW EXCLUSIVE MODE")
            is_held.set()
            assert is_waited_for.wait(PATIENCE_SECONDS)
            cursor.execute(f"LOCK TABLE {first} IN ROW EXCLUSIVE MODE")

    running = in_thread(request)
    assert is_held.wait(PATIENCE_SECONDS)
    emptied = in_thread(emptying.empty_tables, None)
    wait_until_blocked()
    is_waited_for.set()
    with suppress(OperationalError):  # the server ends either; nobody waits for the request any more
        running.result()
    emptied.result()
    assert not Project.objects.exists()
