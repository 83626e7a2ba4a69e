"""Replays scenario files through the engine. Needs no database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.measuring import agent_scenarios, seed_scenarios
from detection.measuring.differences import Played


class Command(BaseCommand):
    """`manage.py conformance FILE… [--json OUT]`."""

    help = "Replay scenario files through the engine and print one line per failed scenario."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "files", nargs="+", type=Path, metavar="FILE", help="scenario file of either kind"
        )
        parser.add_argument(
            "--json", type=Path, metavar="OUT", help="write the results of each scenario to this file"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Play every file; exit 1 when a scenario fails."""
        played = [one for path in options["files"] for one in play_file(path)]
        for one in played:
            if not one.passed:
                self.stdout.write(f"{one.id}: {'; '.join(one.problems)}")
        failed = sum(1 for one in played if not one.passed)
        if options["json"]:
            report = {one.id: {"passed": one.passed, "problems": one.problems, **one.got} for one in played}
            options["json"].write_text(json.dumps(report, indent=1, default=list) + "\n", encoding="utf-8")
        self.stdout.write(f"{len(played) - failed} passed, {failed} failed")
        if failed:
            raise SystemExit(1)


def play_file(path: Path) -> list[Played]:
    """Play every scenario of a file.

    Raises
    ------
    CommandError
        When the file cannot be read or contains no scenarios.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: {error}") from None
    lists = document if isinstance(document, dict) else {"scenarios": document}
    scenarios = [one for name in ("scenarios", "extra") for one in lists.get(name) or []]
    if scenarios and all(isinstance(one, dict) and "system" in one for one in scenarios):
        return [seed_scenarios.play(one) for one in scenarios]
    if scenarios and all(isinstance(one, dict) and "ideal" in one for one in scenarios):
        return [agent_scenarios.play(one) for one in scenarios]
    raise CommandError(f"{path}: not a scenario file; its format is {lists.get('format')!r}")
