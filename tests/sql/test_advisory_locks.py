"""Advisory locks belong to the installation, which may share its database with others."""

import pytest
from django.db import connection

from detection.sql.advisory_locks import AdvisoryLock, try_lock
from tests.support.threads import Worker


def is_free(schema, row_id):
    """Whether a connection with this schema could hold the lock."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET search_path = {schema}")
    with try_lock(AdvisoryLock.SWEEP, row_id) as is_locked:
        return is_locked


def is_free_elsewhere(schema, row_id):
    other = Worker(is_free, schema, row_id)
    other.start()
    return other.result()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("row_id", [None, 7])
def test_a_lock_is_held_for_one_schema(row_id):
    with try_lock(AdvisoryLock.SWEEP, row_id) as is_locked:
        assert is_locked
        assert not is_free_elsewhere("public", row_id)
        assert is_free_elsewhere("pg_catalog", row_id)
    assert is_free_elsewhere("public", row_id)
