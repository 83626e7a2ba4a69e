"""Measures the detectors against labelled recorded runs. Needs no database."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.engine.identity import Keyer
from detection.engine.policy import PRESETS, SERVER, Policy, resolve
from detection.integrations.recorded_runs import TraceError, fold_session, read_lines, sessions
from detection.integrations.traces import SessionName, name_of
from detection.management.commands.replay import add_policy, read_policy
from development.measuring.quality import LIMITS, Label, Quality, differences, labels, table, violations


class Command(BaseCommand):
    """`manage.py evaluate --labels LABELS.jsonl… [--policy POLICY] [--compare POLICY] EVENTS.jsonl… [--json]`."""

    help = (
        "Print recall, false alarms, delay and calls saved on labelled runs. Exits with 1 if a set of labels "
        "misses a given limit."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the arguments."""
        parser.add_argument("events", nargs="+", type=Path, metavar="EVENTS.jsonl")
        parser.add_argument(
            "--labels",
            type=Path,
            required=True,
            action="append",
            metavar="LABELS.jsonl",
            help="labels of the runs; may be given several times, each set is also counted separately",
        )
        parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
        parser.add_argument(
            "--presets", action="store_true", help="measure every preset on the same runs, too; takes a while"
        )
        parser.add_argument(
            "--successes",
            action="store_true",
            help="also count the runs whose label has a successful outcome, inspected or not",
        )
        parser.add_argument(
            "--compare", metavar="POLICY", help="measure this policy, too, and list the runs that differ"
        )
        for name, (share, how) in LIMITS.items():
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=_share,
                metavar="SHARE",
                help=f"fail unless `{share}` is {how} this share, 0 to 1, in every set of labels",
            )
        add_policy(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Print recall and precision; only runs with a label count."""
        limits = {name: options[name] for name in LIMITS if options[name] is not None}
        with_successes = options["successes"] or any("success" in name for name in limits)
        try:
            wanted = _labels(options["labels"], with_successes=with_successes)
            quality = _measure(options["events"], wanted, read_policy(options["policy"]))
            report = quality.report()
            if options["compare"]:
                other = _measure(options["events"], wanted, read_policy(options["compare"]))
                report["compared"] = other.report()
                report["differences"] = differences(quality, other, wanted)
            if options["presets"]:
                report["by_preset"] = {
                    name: _measure(options["events"], wanted, resolve([(SERVER, {"preset": name})])).report()
                    for name in PRESETS
                }
        except (OSError, TraceError) as error:
            raise CommandError(str(error)) from None
        broken = report["violations"] = violations(quality.by_set, limits)
        if options["json"]:
            self.stdout.write(json.dumps(report, ensure_ascii=False))
        else:
            table(report, self.stdout.write)
        if broken:
            raise CommandError("; ".join(broken))


def _share(text: str) -> float:
    """Read a share of an option."""
    with suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise ArgumentTypeError("must be between 0 and 1")


def _labels(paths: Sequence[Path], *, with_successes: bool) -> dict[SessionName, Label]:
    """Read label sets. A set is called by folder and file; a run that two sets label belongs to the first."""
    wanted: dict[SessionName, Label] = {}
    for path in paths:
        wanted = labels(read_lines(path), "/".join(path.parts[-2:]), with_successes=with_successes) | wanted
    return wanted


def _measure(paths: Sequence[Path], wanted: Mapping[SessionName, Label], policy: Policy) -> Quality:
    """Fold the labelled runs of these files, one run in memory at a time."""
    quality, keyer = Quality(), Keyer()
    events = (event for path in paths for event in read_lines(path) if name_of(event) in wanted)
    for name, run in sessions(events):
        quality.add(name, wanted[name], fold_session(run, policy, keyer))
    return quality
