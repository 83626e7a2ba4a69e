"""Repeats transactions that PostgreSQL rolled back because of conflicts: deadlocks and serialization failures."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import structlog
from django.db import OperationalError, connection

log = structlog.get_logger(__name__)
ATTEMPTS = 5
PAUSE_SECONDS = 0.02
"""Longest pause before the second attempt; doubled for each further one."""
_CONFLICTS = frozenset(("40001", "40P01"))
_P = ParamSpec("_P")
_R = TypeVar("_R")


def retry_conflicts(transact: Callable[_P, _R]) -> Callable[_P, _R]:
    """Repeat a function that is one or more transactions, at most `ATTEMPTS` times in all.

    Inside a transaction of the caller it runs once: only the caller can repeat that. Other errors are not repeated.
    """

    @wraps(transact)
    def repeated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for attempt in range(1, ATTEMPTS):
            try:
                return transact(*args, **kwargs)
            except OperationalError as error:
                if getattr(error.__cause__, "sqlstate", None) not in _CONFLICTS or connection.in_atomic_block:
                    raise
                log.info("transaction_repeated", function=transact.__name__, error=str(error)[:200])
            time.sleep(random.uniform(0, PAUSE_SECONDS * 2**attempt))  # noqa: S311 - so that both do not meet again
        return transact(*args, **kwargs)

    return repeated
