"""`restore`: replaces the database by a backup, in one transaction, also while LoopGuard runs."""

import contextlib
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, cast

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from detection.services.storage import distribution
from loopguard_site.database_programs import ProgramProblem, environment, failure, program

TRIES = 5
"""Of the transaction: it may meet another one in a deadlock, as it locks every table."""
PAUSE_SECONDS = 1.0
COPIED_BYTES = 1 << 18
"""Passed from one program to the other at a time; a judgement, not measured."""
_BEFORE = "DROP SCHEMA public CASCADE; CREATE SCHEMA public AUTHORIZATION pg_database_owner"
_AFTER = "UPDATE public.detection_project SET policy_version = (extract(epoch FROM now()) * 1000)::bigint"
"""Processes that go on know settings by their version: no change after the restore may get that of one before it."""


class Command(BaseCommand):
    """Everything or nothing: what was there is there again if a statement fails."""

    help = "Replace the database by a file of `backup`, also while LoopGuard runs."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("file", type=Path, help="a file that `backup` has written")
        parser.add_argument("--yes", action="store_true", help="do not ask whether the present data may go")

    def handle(self, *_: object, **options: Any) -> None:
        """Check the file, ask, replace, and prepare."""
        file: Path = options["file"]
        owner = "owner" if "owner" in settings.DATABASES else DEFAULT_DB_ALIAS
        name = connections[owner].settings_dict["NAME"]
        with distribution.entered(owner):
            with _changing_nothing():
                script = self._script(file, owner)
            if not options["yes"] and not _agrees(
                f"Replace everything in the database {name} by {file}? [y/N] "
            ):
                raise CommandError("Nothing was changed.")
            self._replace_and_prepare(script, owner)
        self.stdout.write(f"Restored {name} from {file}.")

    def _replace_and_prepare(self, script: list[str], owner: str) -> None:
        """Do both while requests are answered with 503: between them, the rights of the processes are gone."""
        with distribution.closed(owner, opens_after_errors=True):
            try:
                with _changing_nothing():
                    self._replace(script, owner)
            finally:
                for alias in connections:
                    connections[alias].close()
            call_command("prepare", stdout=self.stdout, stderr=self.stderr)

    def _script(self, file: Path, owner: str) -> list[str]:
        """Return the command that writes the backup as SQL, after reading the file once as a check."""
        restore = str(program("pg_restore", owner))
        checked = subprocess.run([restore, "--list", str(file)], capture_output=True, check=False)
        if checked.returncode or b"detection_session" not in checked.stdout:
            reason = checked.stderr.decode(errors="replace").strip()[:500] or "it has no tables of LoopGuard"
            raise ProgramProblem(f"{file} is no backup of LoopGuard: {reason}")
        return [restore, "--no-owner", "--no-privileges", "--schema=public", "--file=-", str(file)]

    def _replace(self, script: list[str], owner: str) -> None:
        psql = str(program("psql", owner))
        command = [
            psql,
            "--quiet",
            "--no-psqlrc",
            "--single-transaction",
            "--set=ON_ERROR_STOP=1",
            "--output=/dev/null",
        ]
        command += [f"--command={_BEFORE}", "--file=-", f"--command={_AFTER}"]
        for tries_left in reversed(range(TRIES)):
            with TemporaryFile() as of_reading, TemporaryFile() as of_writing:
                is_read, is_written = _pass_on(script, of_reading, command, of_writing, environment(owner))
                if is_read and is_written:
                    return
                of_reading.seek(0)
                of_writing.seek(0)
                errors = of_writing.read()
                problem = failure("psql", errors) if is_read else failure("pg_restore", of_reading.read())
            if b"deadlock detected" not in errors or not tries_left:
                raise problem
            time.sleep(PAUSE_SECONDS)


@contextlib.contextmanager
def _changing_nothing() -> Iterator[None]:
    """Say of what fails here that everything is as it was."""
    try:
        yield
    except (ProgramProblem, OSError) as problem:
        raise CommandError(f"{problem}\nNothing was changed.") from problem


def _pass_on(
    reader: Sequence[str],
    of_reader: IO[bytes],
    writer: Sequence[str],
    of_writer: IO[bytes],
    env: Mapping[str, str],
) -> tuple[bool, bool]:
    """Give what one program writes to another, and return which of them did what they should.

    The input of `writer` ends only after all of it was read: it takes the end of a part for that of the whole, and
    would commit it.
    """
    reading = subprocess.Popen(reader, stdout=subprocess.PIPE, stderr=of_reader)
    writing = subprocess.Popen(
        writer, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=of_writer, env=env
    )
    source, target = cast("IO[bytes]", reading.stdout), cast("IO[bytes]", writing.stdin)
    has_ended = is_whole = False
    try:
        shutil.copyfileobj(source, target, COPIED_BYTES)
        is_whole = True
    except BrokenPipeError:
        has_ended = True
    finally:
        source.close()
        is_whole &= reading.wait() == 0
        if not is_whole:
            writing.kill()
        with contextlib.suppress(BrokenPipeError):
            target.close()
        writing.wait()
    return is_whole or has_ended, writing.returncode == 0


def _agrees(question: str) -> bool:
    if not sys.stdin.isatty():
        raise CommandError("The present data would be replaced: add --yes.")
    return input(question).strip().lower() in ("y", "yes")
