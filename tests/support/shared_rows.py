"""Rows that the tests of a module have in common, made once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from django.db import transaction


@contextlib.contextmanager
def shared_rows(django_db_blocker: Any) -> Iterator[None]:
    """Keep what is written inside until the end of a module; what each of its tests writes is undone after the test.

    For module-scoped fixtures, which depend on `django_db_setup`, too. The tests must use `db`: one that commits would
    commit within this transaction.
    """
    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)
