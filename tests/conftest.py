"""Gives the suite real servers before Django's settings are read.

Where `DATABASE_URL` or `REDIS_URL` is not set, an embedded server is started in a private
temporary folder for this run and ended with it, so that any number of runs may go on beside
one another. Django's settings are read as soon as any other conftest imports a model, hence
all of it happens when this file is imported. A run of the rooms that know no Django needs none of it.
"""

import atexit
import contextlib
import fcntl
import itertools
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopguard_site.supervisor.postgres import EmbeddedPostgres
from loopguard_site.supervisor.valkey import EmbeddedValkey

_HERE = Path(__file__).parent
_ROOMS_WITHOUT_DJANGO = [_HERE / room for room in ("development", "engine", "supervisor")]
_SLOW_ROOMS = ("reliability", "supervisor", "demo")
"""Where whole installations are started: begun first, so that no process is left with one of them at the end."""
_FOLDER_PREFIX = "loopguard-test-"
_SURELY_HELD_AFTER_SECONDS = 60


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Begin with what takes longest, in whatever order the rest is."""
    yield
    items.sort(key=lambda item: item.path.relative_to(_HERE).parts[0] not in _SLOW_ROOMS)


def _needs_django() -> bool:
    """Tell whether anything that knows Django is to be tested.

    Workers of pytest-xdist are told by the process that started them.
    """
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


def _takes_a_value(word: str) -> bool:
    """Tell whether a word of the command line may be an option that the next one belongs to, such as `--ignore`."""
    return word.startswith("-") and "=" not in word and not re.fullmatch(r"-[qvxsl]+", word)


def _is_without_django(path: Path) -> bool:
    return any(path.is_relative_to(room) for room in _ROOMS_WITHOUT_DJANGO)


def _start_servers() -> None:
    """Start what the environment does not name, and name it there for this process and its children."""
    folder: Path | None = None

    def private_folder() -> Path:
        nonlocal folder
        if folder is None:
            _remove_folders_of_killed_runs()
            folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
            folder.chmod(0o711)  # the servers' unprivileged account must pass through
            _hold(folder)
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder

    if not os.environ.get("DATABASE_URL"):
        postgres = EmbeddedPostgres(private_folder() / "postgres", durable=False)
        postgres.start()
        atexit.register(postgres.stop)
        postgres.create_database("loopguard")
        os.environ["DATABASE_URL"] = postgres.url("loopguard")
        os.environ["LOOPGUARD_TEST_SERVERS"] = "embedded"
    # The broker has no databases apart for its messages, so every worker of xdist gets one of its own.
    if not os.environ.get("REDIS_URL") or _inherited_broker():
        valkey = EmbeddedValkey(private_folder() / "valkey")
        valkey.start()
        atexit.register(valkey.stop)
        os.environ["REDIS_URL"] = valkey.url
        os.environ["LOOPGUARD_TEST_BROKER"] = "embedded"


def _inherited_broker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ and os.environ.get("LOOPGUARD_TEST_BROKER") == "embedded"


def _hold(folder: Path) -> int:
    """Lock the folder for as long as this process lives."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _remove_folders_of_killed_runs() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _SURELY_HELD_AFTER_SECONDS:
                os.close(_hold(folder))
                shutil.rmtree(folder, ignore_errors=True)


if _needs_django():
    os.environ["LOOPGUARD_MODE"] = "test"
    _start_servers()
    os.environ["DJANGO_SETTINGS_MODULE"] = "loopguard_site.settings"

    import django
    from django.conf import settings

    # No test is about how slow guessing is made by hashing; started installations have the real one.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    django.setup()

    from detection.models import Event

    # Made by hand as it is partitioned, so Django would leave its rows to the tests that follow.
    Event._meta.managed = True


@pytest.fixture
def receiver(settings):
    """A receiver of alerts on this machine, in a network that the deployment allows."""
    from tests.support.http_receiver import receiving

    settings.ALERT_ALLOWED_NETWORKS = ("127.0.0.0/8",)
    with receiving() as running:
        yield running
