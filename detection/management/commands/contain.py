"""``contain``: stops, holds or blocks everything of a scope, lists containments and lifts them.

It works without the web server.
"""

from __future__ import annotations

import json
from argparse import Namespace
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection import clock
from detection.management.choices import chosen_project
from detection.models import Containment, ContainmentReaction, ContainmentScope
from detection.selectors.containments import ContainmentRow, describe, in_force, list_containments
from detection.selectors.row_fields import document_of
from detection.services.audit import Actor
from detection.services.containments import containments
from detection.services.containments.containments import Wanted
from detection.services.errors import ServiceError

_ACTOR = Actor("command line")
_SHOWN = 100


class Command(BaseCommand):
    """Only the database has to run."""

    help = "Stop, hold or block everything of an agent, a model, a tool or a wider scope. Works without the web server."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "reaction", choices=[*ContainmentReaction.values, "list", "lift"], help="what to do"
        )
        parser.add_argument(
            "scope", nargs="?", default="", help=f"{', '.join(ContainmentScope)}; or the id to lift"
        )
        parser.add_argument(
            "value", nargs="?", default="", help="the name in the scope, as in `contain stop agent bot`"
        )
        parser.add_argument("--tool", default="", metavar="NAME", help="the tool, for the scope agent_tool")
        parser.add_argument("--project", metavar="SLUG", help="the project; not needed if there is only one")
        parser.add_argument("--reason", default="", metavar="TEXT", help="the reason, which agents read, too")
        parser.add_argument(
            "--minutes", type=int, metavar="N", help="lift it by itself after so many minutes"
        )
        parser.add_argument("--existing-only", action="store_true", help="exclude sessions that start later")
        parser.add_argument("--preview", action="store_true", help="only count what it would reach")
        parser.add_argument("--json", action="store_true", help="print what the API returns")

    def handle(self, *_: object, **given: Any) -> None:
        """Create, list or lift."""
        options = Namespace(**given)
        try:
            if options.reaction == "list":
                self._list(options)
            elif options.reaction == "lift":
                self._lift(options)
            else:
                self._contain(options)
        except ServiceError as error:
            raise CommandError(error.detail) from error

    def _contain(self, options: Namespace) -> None:
        is_server = options.scope == ContainmentScope.SERVER
        project_id = None if is_server else chosen_project(options.project).pk
        minutes = options.minutes
        wanted = Wanted(
            options.scope,
            options.value,
            options.reaction,
            options.tool,
            options.reason,
            clock.now() + timedelta(minutes=minutes) if minutes else None,
            include_new=not options.existing_only,
        )
        if options.preview:
            row = containments.preview(project_id, wanted)
            self._print(row, f"Would {row.reaction} {self._words(row)}:", options)
        else:
            row = containments.contain(project_id, wanted, _ACTOR)
            self._print(row, f"In force for {self._words(row)} as {row.public_id}:", options)

    def _lift(self, options: Namespace) -> None:
        row = Containment.objects.filter(public_id=options.scope).first()
        if row is None:
            raise CommandError(f'There is no containment "{options.scope}". `contain list` shows them.')
        row = containments.lift(row.project_id, row.public_id, _ACTOR)
        self._print(row, f"Lifted {row.public_id} of {self._words(row)}.", options)

    def _list(self, options: Namespace) -> None:
        if options.project:
            rows = list_containments(chosen_project(options.project).pk, limit=_SHOWN, is_in_force=True)
        else:
            rows = [*in_force(clock.now())[:_SHOWN]]
        for row in rows:
            place = row.project.slug if row.project else "every project"
            self._print(
                row,
                f"{row.public_id}: {row.reaction} {self._words(row)}, {place}, by {row.created_by}",
                options,
            )
        if not rows and not options.json:
            self.stdout.write("Nothing is contained.")

    def _words(self, row: Containment) -> str:
        return describe(row.scope, row.value, row.tool)

    def _print(self, row: Containment, line: str, options: Namespace) -> None:
        if options.json:
            document = document_of(row, ContainmentRow)
            self.stdout.write(json.dumps(document, default=str))
            return
        self.stdout.write(line)
        if line.endswith(":"):
            self.stdout.write(
                f"  {row.can_stop:,} sessions can be stopped, {row.can_block:,} blocked,"
                f" {row.watch_only:,} only watched"
            )
