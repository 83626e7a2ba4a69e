"""`prepare`: updates database, rights and static files; creates login and key at the first start."""

import contextlib
import dataclasses
import json
import os
import random
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
import structlog
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, DatabaseError, OperationalError, connections
from django.db.migrations.loader import MigrationLoader
from psycopg.errors import DeadlockDetected, DiskFull, InsufficientPrivilege, LockNotAvailable

from detection.selectors.audit import audit_weakness
from detection.selectors.servers import broker_server, database_server
from detection.services.maintenance.first_start import (
    FirstStart,
    demo_key,
    first_start,
    new_secrets,
    unclaimed_login,
)
from detection.services.maintenance.trial import trial
from detection.services.sessions.other_server import forget_its_transactions
from detection.services.storage import database_rights
from loopguard_site import collected_files
from loopguard_site.env import OWNER_VARIABLE, unknown_variables
from loopguard_site.management.commands.new_secrets import show
from loopguard_site.supervisor.data_folder import write_private

log = structlog.get_logger(__name__)
OWNER = "owner"
TABLE_LOCK_MILLISECONDS = 500
"""Requests queue behind a change that waits for its lock; those of the guard have 1.5 seconds."""
CHANGE_SECONDS = 120.0
"""The longest statement of a process, an import, has a minute."""


class Command(BaseCommand):
    """Run before any process is started, on every start and upgrade; running it again changes nothing."""

    help = "Update the database, its privileges and static files; create a login and an API key on the first start."
    requires_system_checks = ()  # of the code, which check_all runs: they import every route, for half a second

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "--new-secrets", action="store_true", help="create a new password and an additional API key"
        )
        parser.add_argument(
            "--no-secrets",
            action="store_true",
            help="create neither a login nor a key, where the output is kept as a log",
        )
        parser.add_argument("--demo", action="store_true", help="also create a key for the demo player")
        parser.add_argument(
            "--static", action="store_true", help="only collect static files; needs no database"
        )
        parser.add_argument(
            "--result",
            type=Path,
            help="write new secrets and what a first try does to this file instead of the terminal",
        )

    def handle(self, *_: object, **options: Any) -> None:
        """Migrate, collect, then create login and key."""
        for name, nearest in unknown_variables(os.environ).items():
            log.warning("unknown_variable", variable=name, nearest=nearest or None)
        if options["static"]:
            collected_files.collect()
            return
        try:
            self._prepare(options)
        except OperationalError as error:
            said = str(error).strip().split("\n", 1)[0]
            raise CommandError(f"The database cannot be prepared: {said}.") from error

    def _prepare(self, options: dict[str, Any]) -> None:
        self._check_servers()
        self._bring_database_up_to_date()
        try:
            collected_files.collect()
        except OSError as error:
            raise CommandError(f"The static files cannot be written: {error}.") from error
        made = None
        if not options["no_secrets"]:
            made = new_secrets() if options["new_secrets"] else first_start()
        if not options["result"]:
            self._show(made)
            return
        try:
            shown: dict[str, Any] = dataclasses.asdict(made) if made else {"unclaimed": unclaimed_login()}
            shown["trial"] = dataclasses.asdict(trial())
            if options["demo"]:
                shown["demo_key"] = demo_key()
            write_private(options["result"], json.dumps(shown))
        except Exception:
            self._show(made)  # they exist now, and cannot be shown later
            raise

    def _show(self, made: FirstStart | None) -> None:
        """Print login and key, or how to create them if nobody has used the present ones."""
        if made:
            show(self, made)
        elif username := unclaimed_login():
            self.stdout.write(
                f"Nobody has signed in yet. `manage.py new-secrets` creates a password of {username} and an API key."
            )

    def _check_servers(self) -> None:
        """Stop at a database server that is too old, and warn of what else is not as tested."""
        database = database_server(_owner())  # the other role may not exist yet
        if database.is_too_old:
            raise CommandError(database.problem)
        problems = [database.problem]
        with contextlib.suppress(redis.RedisError):  # it is not needed here, and System shows that it is away
            problems.append(broker_server().problem)
        for problem in filter(None, problems):
            self.stderr.write(problem)

    def _bring_database_up_to_date(self) -> None:
        """Migrate as the owner of the tables, then grant rights to the role that runs LoopGuard."""
        owner = _owner()
        role = settings.DATABASES[DEFAULT_DB_ALIAS]
        try:
            _reject_unreleased(owner)
            _between_requests(owner, lambda: _migrate(owner))
            if forget_its_transactions(owner):
                log.warning("transactions_of_another_server_forgotten")
            if owner == OWNER:
                database_rights.grant(owner, str(role["USER"]), str(role["PASSWORD"]))
        except database_rights.NoSuchRole as error:
            raise CommandError(error.detail) from error
        except DatabaseError as error:
            # Django wraps the error when it cannot create its own table.
            cause = error.__cause__ or getattr(error.__context__, "__cause__", None)
            if isinstance(cause, DiskFull):
                raise CommandError(
                    f"The disk of the database is full: {cause.diag.message_primary}. Free some space and start again."
                ) from error
            if not isinstance(cause, InsufficientPrivilege):
                raise
            raise CommandError(
                f"The database denied permission: {cause.diag.message_primary}. If the role of DATABASE_URL does "
                f"not own the tables, {OWNER_VARIABLE} must be set for this command."
            ) from error
        if weakness := audit_weakness():
            self.stderr.write(weakness)


def _owner() -> str:
    return OWNER if OWNER in settings.DATABASES else DEFAULT_DB_ALIAS


def _migrate(owner: str) -> None:
    call_command("migrate", interactive=False, verbosity=0, database=owner)
    database_rights.forbid_truncate(owner)


def _between_requests(owner: str, change: Callable[[], None]) -> None:
    """Change tables while processes use them: a change that gets no lock at once lets those behind it pass, and waits.

    Raises
    ------
    OperationalError
        No lock was to be had in `CHANGE_SECONDS`.
    """
    deadline = time.monotonic() + CHANGE_SECONDS
    with connections[owner].cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {TABLE_LOCK_MILLISECONDS}")
        while True:
            try:
                change()
                break
            except OperationalError as error:
                is_in_use = isinstance(error.__cause__, LockNotAvailable | DeadlockDetected)
                if not is_in_use or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.1, 0.5))  # noqa: S311 (spreads attempts, keeps no secret)
        cursor.execute("SET lock_timeout = DEFAULT")


def _reject_unreleased(owner: str) -> None:
    """Reject tables that came about by other steps than those of this version, before anything is changed.

    Raises
    ------
    CommandError
        The database is of a later version, or of an unreleased one.
    """
    loader = MigrationLoader(connections[owner])
    own = {key for key in loader.disk_migrations if key[0] == "detection"}
    applied = {key for key in loader.applied_migrations if key[0] == "detection"}
    if applied > own:
        raise CommandError(
            "The data belongs to a later version of LoopGuard, and nothing was changed: start that version."
        )
    if applied - own:
        raise CommandError(
            "The data was made by an unreleased version of LoopGuard: start that version, or this one on a new data "
            "folder (LOOPGUARD_DATA) or an empty database."
        )
