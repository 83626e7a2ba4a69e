"""Fails tests whose statements are not for the node of one project; a plugin of pytest.

There is no exception to what `tenant_statements` rejects. `statements_on_all_nodes.txt` is no list of exceptions, but of
another kind: what looks across projects on purpose, in the background or for the administration, one a line: the
function that sends the statement, its command, and the tables whose project it does not name. A test that sends another
one fails, and so does one that sends any while an agent waits. `--statements write`, in a run of the whole suite, writes
the list without those that no test sends any more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest
from django.apps import apps
from django.db.backends.signals import connection_created
from django.db.models import Model

from detection.models.tenants import tenant_tables
from detection.services.storage.distribution import tables_by_project
from detection.sql import pipeline
from tests.support.tenant_statements import AllNodes, Rejected, read

LIST = Path(__file__).parents[1] / "statements_on_all_nodes.txt"
_ROOT = Path(__file__).parents[2]
_PRODUCT = tuple(f"{_ROOT / name}/" for name in ("detection", "loopguard_site"))
_BELOW = (f"{_ROOT}/detection/sql/", f"{_ROOT}/detection/models/tenants.py")
_TESTS = f"{_ROOT / 'tests'}/"
_OF_AGENTS = tuple(
    f"{_ROOT}/detection/{name}"
    for name in (
        "api/routes/agents.py", "consumers/approval_long_poll.py", "gateway/", "services/ingestion/guard.py",
        "services/ingestion/ingest.py", "services/ingestion/telemetry.py", "services/sessions/locked_session.py",
    )
)  # fmt: skip
"""Files of which one is at work while an agent waits: for an answer of the guard, or for its events to be stored."""

_WRITING = "LOOPGUARD_WRITES_STATEMENTS"
"""Set for the processes of a run that writes the list."""

seen: set[str] = set()
"""Statements on all nodes that this process has sent, as they are listed, and rejected ones."""


def listed() -> list[str]:
    """Return the statements that may run on all nodes."""
    return LIST.read_text().splitlines()


def entry(text: str) -> str | None:
    """Return how a statement that is about to be sent is listed; None for one that is for one node.

    One that can be no entry of the list begins with ``rejected``.
    """
    found = read(text, tenant_tables(), _beside())
    if isinstance(found, AllNodes):  # but for tables that are whole on every node
        tables = " ".join(one for one in found.tables.split() if one in tables_by_project())
        found = AllNodes(found.command, tables) if tables else None
    place, is_for_agent = _place(sys._getframe(1)) if found else (None, False)
    if found is None or place is None:
        return None
    if isinstance(found, AllNodes) and is_for_agent:
        found = Rejected(found.command, f"{found.tables}: no project is named while an agent waits")
    return " ".join((*["rejected"] * isinstance(found, Rejected), place, *found))


@cache
def _beside() -> frozenset[str]:
    """Return the tables that Citus plans for though no node has a part: on every node, or referring to one that is."""
    pairs = [
        (model._meta.db_table, cast("type[Model]", field.related_model)._meta.db_table)
        for model in apps.get_models(include_auto_created=True)
        for field in model._meta.local_concrete_fields
        if field.remote_field and getattr(field, "db_constraint", False)
    ]
    found = {"detection_project"}
    while (
        more := {table for pair in pairs for table in pair if found & {*pair}} - found - tables_by_project()
    ):
        found |= more
    return frozenset(found)


def _note(text: Any) -> None:
    if isinstance(text, str) and (one := entry(text)) and one not in seen:
        seen.add(one)
        if os.environ.get(_WRITING) and not one.startswith("rejected"):
            with LIST.open("a") as file:
                file.write(f"{one}\n")


def _place(frame: FrameType | None) -> tuple[str | None, bool]:
    """Return the function of the product that sends a statement, None for a test; and whether an agent waits for it."""
    place, is_for_agent = None, False
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TESTS) and "/tests/support/statement_checks.py" not in file:
            break
        if file.startswith(_PRODUCT) and not file.startswith(_BELOW):
            function = frame.f_code.co_qualname.split(".<")[0]
            place = place or f"{file.removeprefix(f'{_ROOT}/')} {function}"
            is_for_agent |= file.startswith(_OF_AGENTS)
        frame = frame.f_back
    return place, is_for_agent


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
    """Fail a test with a statement that is rejected, or on all nodes and not listed."""
    before = {*seen}
    yield
    new = sorted(seen - before - {*listed()}) if len(seen) > len(before) else []
    if new and item.config.getoption("--statements") == "check":
        pytest.fail(
            "Statements that are not for the node of one project. Name the project of each table, in each query, or add"
            f" the line to {LIST.relative_to(_ROOT)} if the statement is of the background or the administration, for"
            " all projects; what is rejected cannot be listed:\n" + "\n".join(new),
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
