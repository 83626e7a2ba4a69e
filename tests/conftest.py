"""Real servers for the suite, and the order of its tests.

Where `DATABASE_URL` or `REDIS_URL` is not set, an embedded server starts in a private temporary
folder and ends with the run, so that any number of runs can go on at the same time. Django reads
its settings as soon as any other conftest imports a model; therefore the servers start when this
file is imported. A run of packages that do not use Django starts none.
"""

import atexit
import contextlib
import faulthandler
import fcntl
import gc
import itertools
import os
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from loopguard_site.supervisor.postgres import EmbeddedPostgres
from loopguard_site.supervisor.valkey import EmbeddedValkey
from tests.support.closed_port import closed_port
from tests.support.sharing import Patience, Scheduling

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
_WITHOUT_DJANGO = [
    *(_HERE / package for package in ("docs", "engine", "supervisor")), _ROOT / "clients"
]  # fmt: skip
_MEASURING = _HERE / "development" / "measuring"
"""Plays scenarios on an installation, so it needs what the other tests of `development` do without."""
_SLOW = (
    "tests/development/measuring/test_running_installation.py",
    "tests/reliability/",
    "tests/supervisor/",
    "tests/demo/",
    "clients/python/",
)
"""Beginnings of paths of tests that start whole installations, the slowest first. They run before all others: at the end,
one of them would leave the other processes idle."""
_SHARED_FIXTURES = {
    "tests/console/test_connect_snippets.py",
    "tests/development/test_package.py",
    "tests/new_detector/test_new_detector.py",
    "tests/reliability/test_connections.py",
    "tests/reliability/test_database_rights.py",
    "tests/reliability/test_deadlines.py",
    "tests/reliability/test_uploads.py",
    "tests/supervisor/test_manage.py",
    "tests/supervisor/test_postgres.py",
}
"""Files whose fixtures take seconds and serve all tests of the file: one process runs the whole file."""
_SHARED_INSTALLATION = {
    "tests/supervisor/test_database_rights.py",
    "tests/supervisor/test_gateway_faults.py",
}
"""Files that share one installation: one process runs all of them."""
IN_TURN = Path(__file__).with_name("in_turn.txt")
"""Tests that take seconds, with these: a suite runs a part of them, and all of them have run after `TURNS` days."""
TURNS = 8
_FOLDER_PREFIX = "loopguard-test-"
_CERTAINLY_LOCKED_AFTER_SECONDS = 60
_END_SECONDS = 120


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option of the long suites."""
    parser.addoption(
        "--long", action="store_true", help="run only the tests marked `long`, which are left out otherwise"
    )
    parser.addoption(
        "--in-turn",
        action="store_true",
        help=f"of the tests that {IN_TURN.name} lists, run one in {TURNS}, others each day",
    )
    parser.addoption(
        "--statements",
        choices=("check", "write", "pass"),
        default="check",
        help="fail tests that send statements without a project that are not listed; or write the list anew",
    )
    parser.addoption(
        "--distributed",
        action="store_true",
        help="distribute the tables of the test database, which exists on the nodes of Citus; with --reuse-db",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch the statements of tests that use Django. The environments of other packages have no parser of SQL."""
    if config.getoption("--statements") != "pass" and "django" in sys.modules and find_spec("pglast"):
        from tests.support import statement_checks

        config.pluginmanager.register(statement_checks)


gc.disable()  # until all tests are collected: what is imported and collected stays


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but rarely, and never search what is there already."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)  # with Python's own, searching takes 7 % of the suite's processor time
    gc.enable()


def pytest_unconfigure() -> None:
    """End a process that hangs after its last test, with the stacks of its threads, as a hanging test ends."""
    faulthandler.dump_traceback_later(_END_SECONDS, exit=True, file=sys.__stderr__)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Choose between the suite and the long suites, and begin with the slow packages."""
    yield
    is_long = config.getoption("--long")
    waiting = _waiting_today() if config.getoption("--in-turn") else frozenset[str]()
    chosen: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        is_chosen = (item.get_closest_marker("long") is not None) == is_long
        is_chosen = is_chosen and item.nodeid.partition("[")[0] not in waiting
        (chosen if is_chosen else deselected).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = chosen
    for item in items if config.getoption("--distributed") else []:
        if (mark := item.get_closest_marker("one_database")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"on one PostgreSQL only: {mark.args[0]}"))
    for item in items if is_long else []:
        item.add_marker(pytest.mark.timeout(0))  # each of these has its own deadlines
    items.sort(key=lambda item: (not item.nodeid.startswith(_SLOW), not item.nodeid.startswith(_SLOW[0])))


def _waiting_today() -> frozenset[str]:
    """Return the tests that run in turn, without those whose turn it is: the same for all processes of a day.

    The tests of a file have one turn, because their fixtures take as long; all turns take about the same time.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    names: defaultdict[str, list[str]] = defaultdict(list)
    for line in IN_TURN.read_text(encoding="utf-8").splitlines():
        taken, name = line.split()
        file = name.partition("::")[0]
        seconds[file] += float(taken)
        names[file].append(name)
    turns = [0.0] * TURNS
    turn_of = {}
    for file in sorted(seconds, key=lambda one: (-seconds[one], one)):
        turn_of[file] = turns.index(min(turns))
        turns[turn_of[file]] += seconds[file]
    today = datetime.now(UTC).toordinal() % TURNS
    return frozenset(name for file, own in names.items() if turn_of[file] != today for name in own)


def _group_of(nodeid: str) -> str:
    """Return which tests one process runs, beginning with the first: all of some files and of the clients."""
    file = nodeid.partition("::")[0]
    if file.startswith("clients/"):
        return "clients"  # they share one installation
    if file in _SHARED_INSTALLATION:
        return "installation"
    return file if file in _SHARED_FIXTURES else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Share the tests among the processes of pytest-xdist."""
    if not config.getoption("--long"):  # whose tests have their own deadlines
        config.pluginmanager.register(Patience())
    return Scheduling(config, log, _group_of)


def _needs_django() -> bool:
    """Return whether any of the tests to run uses Django; workers of pytest-xdist inherit the answer."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return "DJANGO_SETTINGS_MODULE" in os.environ
    if {"--help", "-h", "--version", "-V"} & set(sys.argv):
        return False
    paths = [
        path
        for before, word in itertools.pairwise(sys.argv)
        if (path := Path(word.split("::")[0])).exists() and not _takes_a_value(before)
    ]
    return not paths or not all(_is_without_django(path.resolve()) for path in paths)


def _is_without_django(path: Path) -> bool:
    return any(path.is_relative_to(package) for package in _WITHOUT_DJANGO) and not (
        path.is_relative_to(_MEASURING) or _MEASURING.is_relative_to(path)
    )


def _takes_a_value(word: str) -> bool:
    """Return whether a word of the command line may be an option with a value, such as `--ignore`."""
    return word.startswith("-") and "=" not in word and not re.fullmatch(r"-[qvxsl]+", word)


def _start_servers() -> None:
    """Start the servers that the environment does not name, and name them there for this process and its children."""
    folder: Path | None = None

    def private_folder() -> Path:
        nonlocal folder
        if folder is None:
            _remove_folders_of_killed_runs()
            folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
            folder.chmod(0o711)  # the servers' unprivileged account must pass through
            _lock(folder)
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder

    if not os.environ.get("DATABASE_URL"):
        postgres = EmbeddedPostgres(private_folder() / "postgres", durable=False)
        postgres.start()
        atexit.register(postgres.stop)
        postgres.create_database("loopguard")
        os.environ["DATABASE_URL"] = postgres.url("loopguard")
        _hash_the_password_once(postgres.url("postgres"))
        os.environ["LOOPGUARD_TEST_SERVERS"] = "embedded"
    # A broker cannot separate the messages of two processes, so every worker of xdist gets its own.
    if not os.environ.get("REDIS_URL") or _inherited_broker():
        valkey = EmbeddedValkey(private_folder() / "valkey")
        valkey.start()
        atexit.register(valkey.stop)
        os.environ["REDIS_URL"] = valkey.url
        os.environ["LOOPGUARD_TEST_BROKER"] = "embedded"


def _hash_the_password_once(url: str) -> None:
    """Shorten the handshake of a connection, of which the suite makes thousands, from 4,096 hashes to one."""
    with psycopg.connect(url, autocommit=True) as server, contextlib.suppress(psycopg.errors.UndefinedObject):
        server.execute("SET scram_iterations = 1")  # since PostgreSQL 16
        parts = urlsplit(url)
        password = sql.SQL("ALTER ROLE {} PASSWORD {}")
        server.execute(password.format(sql.Identifier(parts.username or ""), sql.Literal(parts.password)))


def _inherited_broker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ and os.environ.get("LOOPGUARD_TEST_BROKER") == "embedded"


def _lock(folder: Path) -> int:
    """Lock the folder for the lifetime of this process."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _remove_folders_of_killed_runs() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _CERTAINLY_LOCKED_AFTER_SECONDS:
                os.close(_lock(folder))
                shutil.rmtree(folder, ignore_errors=True)


if _needs_django():
    os.environ["LOOPGUARD_MODE"] = "test"
    _start_servers()
    os.environ["DJANGO_SETTINGS_MODULE"] = "loopguard_site.settings"

    import django
    from django.conf import settings

    # Empty: each client of a test would look through all that an installation on this checkout has collected.
    for name in ("IMPORT_FOLDER", "STATIC_ROOT", "STATIC_FOLDERS"):
        setattr(settings, name, tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{name.lower()}-"))
        atexit.register(shutil.rmtree, getattr(settings, name), ignore_errors=True)
    # No test depends on the cost of hashing; installations that tests start have the real hasher.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    django.setup()
    gc.disable()

    from django.core.management import call_command
    from django.test import TransactionTestCase

    from tests.support.emptying import empty_tables

    TransactionTestCase._fixture_teardown = empty_tables  # type: ignore[attr-defined]
    # A test that commits goes on with the connection of the one before, as those do that roll back.
    TransactionTestCase._should_reload_connections = lambda _: False  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def django_db_setup(request, django_db_setup, django_db_blocker):
    """The test database, which nothing uses any more when it is dropped."""
    from tests.support import emptying, pooling

    if request.config.getoption("--distributed"):
        with django_db_blocker.unblock():
            call_command("distribute", "--yes")
    yield
    pooling.close()
    emptying.end_connections()


@pytest.fixture
def receiver(settings):
    """A receiver of alerts on this machine, in a network that the settings allow."""
    from tests.support.http_receiver import receiving

    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    with receiving() as running:
        yield running


@pytest.fixture
def no_broker() -> Iterator[str]:
    """The address of a broker that accepts no connection."""
    with closed_port() as port:
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture
def server_with_nodes(transactional_db):
    """The test's connection takes the database for one whose rows may be on other nodes."""
    from django.db import connection

    connection.ensure_connection()
    connection.connection.has_nodes = True
    yield
    connection.close()


@pytest.fixture(params=["one server", "nodes"])
def servers_of_both_kinds(request):
    """The test's connection takes the database for what it is, and for one whose rows may be on other nodes."""
    request.getfixturevalue("server_with_nodes" if request.param == "nodes" else "transactional_db")


@pytest.fixture
def pooled(transactional_db):
    """Take database connections from a pool."""
    from tests.support import pooling

    with pooling.pooled():
        yield
