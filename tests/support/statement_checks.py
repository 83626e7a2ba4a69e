"""Fails tests whose statements do not name the project of the rows that they touch; a plugin of pytest.

`statements_without_project.txt` lists those that are allowed, one a line: the function that sends the statement, its
command, and the tables whose project is missing. Most of them look across projects on purpose: sweeps and trims of the
server, metrics, the administration. A test that sends another one fails. `--statements write`, in a run of the whole
suite, writes the list without those that no test sends any more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.db.backends.signals import connection_created

from detection.models.tenants import tenant_tables
from detection.sql import pipeline
from tests.support.tenant_statements import unnamed_tables

LIST = Path(__file__).parents[1] / "statements_without_project.txt"
_ROOT = Path(__file__).parents[2]
_PRODUCT = tuple(f"{_ROOT / name}/" for name in ("detection", "loopguard_site"))
_BELOW = (f"{_ROOT}/detection/sql/", f"{_ROOT}/detection/models/tenants.py")
_TESTS = f"{_ROOT / 'tests'}/"

_WRITING = "LOOPGUARD_WRITES_STATEMENTS"
"""Set for the processes of a run that writes the list."""

seen: set[str] = set()
"""Statements without a project that this process has sent, as they are listed."""


def listed() -> list[str]:
    """Return the statements that may be without a project."""
    return LIST.read_text().splitlines()


def entry(text: str) -> str | None:
    """Return how a statement that is about to be sent is listed; None for one that names the project."""
    found = unnamed_tables(text, tenant_tables())
    place = found and _place(sys._getframe(1))
    return " ".join((place, *found)) if found and place else None


def _note(text: Any) -> None:
    if isinstance(text, str) and (one := entry(text)) and one not in seen:
        seen.add(one)
        if os.environ.get(_WRITING):
            with LIST.open("a") as file:
                file.write(f"{one}\n")


def _place(frame: FrameType | None) -> str | None:
    """Return the function of the product that sends a statement; None for a test."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TESTS) and "/tests/support/statement_checks.py" not in file:
            return None
        if file.startswith(_PRODUCT) and not file.startswith(_BELOW):
            function = frame.f_code.co_qualname.split(".<")[0]
            return f"{file.removeprefix(f'{_ROOT}/')} {function}"
        frame = frame.f_back
    return None


def _check(execute: Any, text: Any, parameters: Any, many: bool, context: Any) -> Any:
    _note(text)
    return execute(text, parameters, many, context)


def _watch(connection: Any, **_: Any) -> None:
    if _check not in connection.execute_wrappers:
        connection.execute_wrappers.append(_check)


def _add(exchange: pipeline._Exchange, statement: pipeline.Statement) -> None:
    _note(statement.text)
    exchange._statements.append(statement)


connection_created.connect(_watch, dispatch_uid="statement_checks")
pipeline._Exchange.add = _add  # type: ignore[method-assign, assignment]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test with a statement that is not listed."""
    before = {*seen}
    yield
    new = sorted(seen - before - {*listed()}) if len(seen) > len(before) else []
    if new and item.config.getoption("--statements") == "check":
        pytest.fail(
            "Statements that do not name the project of these tables. Name it, or add the line to"
            f" {LIST.relative_to(_ROOT)} if the statement is for all projects:\n" + "\n".join(new),
            pytrace=False,
        )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin a new list, which the processes of the run write together."""
    if session.config.getoption("--statements") == "write" and not os.environ.get(_WRITING):
        os.environ[_WRITING] = "1"
        LIST.write_text("")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put the list in order."""
    if config.getoption("--statements") == "write":
        LIST.write_text("".join(f"{one}\n" for one in sorted({*listed()})))
