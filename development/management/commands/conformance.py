"""Replays scenario files through the engine, or through a running installation. The engine needs no database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from development.measuring.differences import Played
from development.measuring.entry_points.installation import InstallationError
from development.measuring.entry_points.playing import ENTRY_POINTS, play_on_installation
from development.measuring.scenario_files import WrittenScenario, play_in_engine, read


class Command(BaseCommand):
    """`manage.py conformance FILE… [--url URL --key KEY [--through INTERFACE]] [--json OUT]`."""

    help = (
        "Replay scenario files through the engine, or through a running installation, and print one line per failed"
        " scenario. Exits with 1 if one failed, and with 2 if they could not be played."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the arguments."""
        parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="scenario file of any kind")
        parser.add_argument("--url", help="address of a running installation; needs --key")
        parser.add_argument("--key", help="key with all scopes, of a project without settings of its own")
        parser.add_argument(
            "--through",
            choices=[*ENTRY_POINTS],
            help="interface that the scenarios go through (default: guard); reported runs have their own",
        )
        parser.add_argument(
            "--clock",
            type=Path,
            metavar="FILE",
            help="file that the installation has as LOOPGUARD_TEST_CLOCK",
        )
        parser.add_argument(
            "--judge-port",
            type=int,
            metavar="PORT",
            help="port of this machine that the installation has in LOOPGUARD_JUDGE_URL; the command answers there",
        )
        parser.add_argument(
            "--model-port",
            type=int,
            metavar="PORT",
            help="port of this machine that it has in LOOPGUARD_GATEWAY_UPSTREAMS; the command answers there",
        )
        parser.add_argument(
            "--longest",
            type=float,
            default=5.0,
            metavar="SECONDS",
            help="without --clock, skip scenarios that take longer (default: 5)",
        )
        parser.add_argument(
            "--json", type=Path, metavar="OUT", help="write the results of each scenario to this file"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Play every file; exit 1 when a scenario fails."""
        self._check(options)
        try:
            scenarios = [one for path in options["files"] for one in read(path)]
        except ValueError as error:
            raise CommandError(str(error), returncode=2) from None
        played, skipped = self._played(scenarios, options)
        for reason, ids in skipped.items():
            self.stdout.write(f"Skipped ({len(ids)}), {reason}: {', '.join(ids)}")
        for one in played:
            if not one.passed:
                self.stdout.write(f"{one.id}: {'; '.join(one.problems)}")
        failed = sum(1 for one in played if not one.passed)
        if options["json"]:
            self._write(options["json"], played, skipped)
        rest = f", {len(scenarios) - len(played)} skipped" if skipped else ""
        self.stdout.write(f"{len(played) - failed} passed, {failed} failed{rest}")
        if failed:
            raise SystemExit(1)

    def _check(self, options: dict[str, Any]) -> None:
        """Check that the options fit each other."""
        if bool(options["url"]) != bool(options["key"]):
            raise CommandError("--url and --key belong together.", returncode=2)
        for name in ("through", "clock", "judge_port", "model_port"):
            if options[name] is not None and not options["url"]:
                raise CommandError(f"--{name.replace('_', '-')} needs --url and --key.", returncode=2)

    def _played(
        self, scenarios: list[WrittenScenario], options: dict[str, Any]
    ) -> tuple[list[Played], dict[str, list[str]]]:
        if not options["url"]:
            return play_in_engine(scenarios)
        try:
            return play_on_installation(
                scenarios,
                options["url"],
                options["key"],
                through=options["through"] or "guard",
                clock_file=options["clock"],
                judge_port=options["judge_port"],
                model_port=options["model_port"],
                longest_seconds=options["longest"],
            )
        except (InstallationError, OSError) as error:
            raise CommandError(str(error), returncode=2) from None

    def _write(self, file: Path, played: list[Played], skipped: dict[str, list[str]]) -> None:
        report: dict[str, Any] = {
            one.id: {"passed": one.passed, "problems": one.problems, **one.got} for one in played
        }
        report |= {name: {"skipped": reason} for reason, ids in skipped.items() for name in ids}
        try:
            file.write_text(json.dumps(report, indent=1, default=list) + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{file}: {error.strerror}", returncode=2) from None
