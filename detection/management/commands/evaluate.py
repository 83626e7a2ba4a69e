"""Measures the detectors against labelled recorded runs. Needs no database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.engine.identity import Keyer
from detection.management.commands.replay import add_policy, read_policy
from detection.measuring.quality import Quality, labels, table
from detection.measuring.traces import TraceError, fold_session, name_of, read_lines, sessions


class Command(BaseCommand):
    """`manage.py evaluate --labels LABELS.jsonl [--policy POLICY.json] EVENTS.jsonl… [--json]`."""

    help = "Prints recall, alarms, delay and calls saved on runs that a person has labelled."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Name the runs, their labels and the policy."""
        parser.add_argument("events", nargs="+", type=Path, metavar="EVENTS.jsonl")
        parser.add_argument("--labels", type=Path, required=True, metavar="LABELS.jsonl")
        parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
        add_policy(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Count only runs that were inspected, with a yes or a no."""
        policy, keyer = read_policy(options["policy"]), Keyer()
        quality = Quality()
        try:
            wanted = labels(read_lines(options["labels"]))
            events = (
                event for path in options["events"] for event in read_lines(path) if name_of(event) in wanted
            )
            for name, run in sessions(events):
                quality.add(name, wanted[name], fold_session(run, policy, keyer))
        except (OSError, TraceError) as error:
            raise CommandError(str(error)) from None
        report = quality.report()
        if options["json"]:
            self.stdout.write(json.dumps(report, ensure_ascii=False))
        else:
            table(report, self.stdout.write)
