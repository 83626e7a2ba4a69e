"""Measures the detectors against labelled recorded runs. Needs no database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.engine.identity import Keyer
from detection.engine.policy import PRESETS, SERVER, Policy, resolve
from detection.management.commands.replay import add_policy, read_policy
from detection.measuring.quality import Label, Quality, labels, table
from detection.measuring.traces import SessionName, TraceError, fold_session, name_of, read_lines, sessions


class Command(BaseCommand):
    """`manage.py evaluate --labels LABELS.jsonl [--policy POLICY.json] [--presets] EVENTS.jsonl… [--json]`."""

    help = "Prints recall, alarms, delay and calls saved on runs that a person has labelled."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Name the runs, their labels and the policy."""
        parser.add_argument("events", nargs="+", type=Path, metavar="EVENTS.jsonl")
        parser.add_argument("--labels", type=Path, required=True, metavar="LABELS.jsonl")
        parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
        parser.add_argument(
            "--presets", action="store_true", help="measure every preset on the same runs, too; takes a while"
        )
        add_policy(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Count only runs that were inspected, with a yes or a no."""
        try:
            wanted = labels(read_lines(options["labels"]))
            report = _measure(options["events"], wanted, read_policy(options["policy"]))
            if options["presets"]:
                report["by_preset"] = {
                    name: _measure(options["events"], wanted, resolve([(SERVER, {"preset": name})]))
                    for name in PRESETS
                }
        except (OSError, TraceError) as error:
            raise CommandError(str(error)) from None
        if options["json"]:
            self.stdout.write(json.dumps(report, ensure_ascii=False))
        else:
            table(report, self.stdout.write)


def _measure(paths: Sequence[Path], wanted: Mapping[SessionName, Label], policy: Policy) -> dict[str, Any]:
    """Fold the labelled runs of these files, one run in memory at a time."""
    quality, keyer = Quality(), Keyer()
    events = (event for path in paths for event in read_lines(path) if name_of(event) in wanted)
    for name, run in sessions(events):
        quality.add(name, wanted[name], fold_session(run, policy, keyer))
    return quality.report()
