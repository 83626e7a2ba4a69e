"""``what-if``: tries a policy change on the sessions of the past days, and prints what it would have changed."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.management.choices import chosen_project
from detection.models import JobState, WhatIf
from detection.selectors.what_ifs import MISSING_WORDS, as_document
from detection.services.audit import Actor
from detection.services.errors import ServiceError
from detection.services.what_if import changes, what_ifs, worker

_POLL_SECONDS = 0.2
_SHOWN = 10


class Command(BaseCommand):
    """Try a policy change on the history; also works without a running worker."""

    help = "Try a policy change on the sessions of the past days before it is saved."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--project", metavar="SLUG", help="the project; not needed if there is only one")
        parser.add_argument("--scope", required=True, help=f"where the change applies: {changes.SCOPES}")
        parser.add_argument(
            "--session", default="", metavar="NAME", help="the session, for the scope session"
        )
        parser.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", dest="values",
            help="a setting of the override or tool rule, which is replaced as a whole; may be given several times",
        )  # fmt: skip
        parser.add_argument("--tool-class", default="", metavar="CLASS", help="class of the tools")
        parser.add_argument("--ignore-argument", action="append", default=[], metavar="PATH", dest="ignored")
        parser.add_argument("--volatile-field", action="append", default=[], metavar="NAME", dest="volatile")
        parser.add_argument("--exempt", action="store_true", help="exempt the tools from detection")
        parser.add_argument("--days", type=int, default=7, help="number of past days to replay: 7 or 30")
        parser.add_argument("--json", action="store_true", help="print the result as the API returns it")

    def handle(self, *_: object, **options: Any) -> None:
        """Create the what-if, work on it until it ends, and print the result."""
        row = self._create(options)
        try:
            while row.is_open:
                # A worker that is faster does the work; then this only waits.
                if not worker.run_waiting(lambda: False, project_id=row.project_id):
                    time.sleep(_POLL_SECONDS)
                row.refresh_from_db()
                self._show_progress(row)
        except KeyboardInterrupt:
            what_ifs.cancel_what_if(row.project_id, row.public_id, Actor("command line"))
            raise CommandError("Cancelled.") from None
        if row.state == JobState.FAILED:
            raise CommandError(row.error)
        if options["json"]:
            self.stdout.write(json.dumps(as_document(row)))
        else:
            self._print(as_document(row))

    def _create(self, options: dict[str, Any]) -> WhatIf:
        project = chosen_project(options["project"])
        pairs = [pair.partition("=") for pair in options["values"]]
        for name, sign, _ in pairs:
            if not sign:
                raise CommandError(f"`--set {name}` must be NAME=VALUE.")
        try:
            change = changes.check(
                project.pk,
                options["scope"],
                {name.strip(): value.strip() for name, _, value in pairs},
                session=options["session"],
                tool_class=options["tool_class"],
                ignore_arguments=options["ignored"],
                volatile_result_fields=options["volatile"],
                exempt=options["exempt"],
            )
            return what_ifs.create_what_if(project.pk, change, Actor("command line"), days=options["days"])
        except ServiceError as error:
            raise CommandError(error.detail) from error

    def _show_progress(self, row: WhatIf) -> None:
        if sys.stderr.isatty():
            end = "\r" if row.is_open else "\n"
            self.stderr.write(f"{row.share:4.0%} of {row.calls:,} calls", ending=end)

    def _print(self, document: dict[str, Any]) -> None:
        found, progress = document["result"], document["progress"]
        covered, recorded = found["coverage"], found["recorded"]
        self.stdout.write(
            f"{progress['done_sessions']:,} sessions of {document['days']} days replayed: "
            f"{covered['replayed_calls']:,} of {covered['calls']:,} calls ({covered['share']:.1%})."
        )
        for reason, calls in covered["missing"].items():
            self.stdout.write(f"  {calls:,} calls not replayed: {MISSING_WORDS[reason]}.")
        self.stdout.write(
            f"{recorded['reproduced']:,} of {recorded['incidents']:,} "
            "recorded incidents are found under the current policy."
        )
        for title, name in (("Lost", "lost"), ("Gained", "gained")):
            group = found[name]
            labels = ", ".join(f"{count:,} {label}" for label, count in group["labelled"].items())
            money = f", {_money(group['cost_usd'])} in loops" if group["cost_usd"] else ""
            self.stdout.write(
                f"{title}: {group['count']:,} incidents{f' ({labels})' if labels else ''}{money}"
            )
            for one in group["items"][:_SHOWN]:
                label = f" [{one['label']}]" if one["label"] else ""
                reacted = f" at call {one['reacted_at_call']}" if one.get("reacted_at_call") else ""
                money = f", {_money(one['cost_usd'])}" if one.get("cost_usd") else ""
                self.stdout.write(
                    f"  {one['kind']} of {one['tool']} in {one['session']}, found at call {one['found_at_call']}: "
                    f"{one['decision']}{reacted}{money}{label}"
                )
        changed = found["changed"]
        differences = ", ".join(f"{count:,} {name}" for name, count in changed["by_difference"].items())
        costs = [changed["cost_usd"], changed["cost_usd_after"]]
        money = f", {_money(costs[0])} before and {_money(costs[1])} after" if any(costs) else ""
        self.stdout.write(
            f"Changed: {changed['count']:,} incidents{f' ({differences})' if differences else ''}{money}"
        )
        spent = found["spent_usd"]
        if any(spent.values()):
            self.stdout.write(
                f"Spent in loops: {_money(spent['before'])} before, {_money(spent['after'])} after"
            )


def _money(amount: float) -> str:
    return f"${amount:,.2f}"
