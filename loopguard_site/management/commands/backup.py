"""`backup`: the whole database as one file, while LoopGuard runs."""

import os
import subprocess
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from loopguard_site.database_programs import ProgramProblem, environment, failure, program


class Command(BaseCommand):
    """Writes a file beside the target and renames it, so that a file of that name is always a whole backup."""

    help = "Save the database in one file while LoopGuard runs; `restore` brings it back."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "file", type=Path, help="the file to write; an existing one is replaced at the end"
        )

    def handle(self, *_: object, **options: Any) -> None:
        """Dump one snapshot of all tables."""
        target: Path = options["file"]
        partial = target.with_name(f"{target.name}.partial")
        owner = "owner" if "owner" in settings.DATABASES else DEFAULT_DB_ALIAS
        try:
            dump = program("pg_dump", owner)
            # Only the account that runs this may read it: it holds what agents said.
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            partial.chmod(0o600)
            done = subprocess.run(
                [
                    dump,
                    "--format=custom",
                    "--no-owner",
                    "--no-privileges",
                    "--schema=public",
                    f"--file={partial}",
                ],
                env=environment(owner),
                capture_output=True,
                check=False,
            )
            if done.returncode:
                raise failure("pg_dump", done.stderr)
            partial.replace(target)
        except (ProgramProblem, OSError) as problem:
            partial.unlink(missing_ok=True)
            raise CommandError(str(problem)) from problem
        size = target.stat().st_size / 1_000_000
        self.stdout.write(f"Saved {connections[owner].settings_dict['NAME']} in {target} ({size:,.1f} MB).")
