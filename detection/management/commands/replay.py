"""Folds recorded events and prints the verdicts that are not a plain allow. Needs no database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.engine.identity import Keyer
from detection.engine.policy import ENVIRONMENT, PRESETS, SERVER, Policy, PolicyError, resolve, validate
from detection.integrations.recorded_runs import TraceError, fold_session, read_lines, sessions


class Command(BaseCommand):
    """`manage.py replay EVENTS.jsonl [--policy POLICY.json]`."""

    help = (
        "Fold recorded events (JSON lines, gzipped or not) and print "
        "one JSON line per call that is not simply allowed."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the arguments."""
        parser.add_argument("events", type=Path, metavar="EVENTS.jsonl")
        add_policy(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Print `{"session", "seq", "decision", "kind", "count"}` per verdict, in the order of the calls."""
        policy, keyer = read_policy(options["policy"]), Keyer()
        try:
            for (_, session), events in sessions(read_lines(options["events"])):
                for one in fold_session(events, policy, keyer):
                    verdict = one.verdict
                    if verdict.decision == "allow" or verdict.finding is None:
                        continue
                    line = {
                        "session": session,
                        "seq": one.seq,
                        "decision": verdict.decision,
                        "kind": verdict.finding.kind,
                        "count": verdict.finding.count,
                    }
                    self.stdout.write(json.dumps(line, ensure_ascii=False))
        except (OSError, TraceError) as error:
            raise CommandError(str(error)) from None


def add_policy(parser: CommandParser) -> None:
    """Declare the option `--policy`, which two commands share."""
    parser.add_argument(
        "--policy", metavar="POLICY", help="name of a preset, or a file with settings as a JSON object"
    )


def read_policy(name: str | None) -> Policy:
    """Return the policy of a preset or of a file; `standard` without a name.

    Raises
    ------
    CommandError
        When the file cannot be read or a setting is wrong.
    """
    if name is None or name in PRESETS:
        return resolve([(SERVER, {"preset": name})] if name else [])
    path = Path(name)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise CommandError(f"{path}: must be a JSON object of settings")
    try:
        return resolve([(ENVIRONMENT, validate(ENVIRONMENT, values))])
    except PolicyError as error:
        raise CommandError(f"{path}: {error}") from None
