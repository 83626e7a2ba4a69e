"""``reset_second_factor``: removes the second factor of a person who has lost the device and the recovery codes."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.services.accounts import second_factor
from detection.services.audit import Actor
from detection.services.errors import ServiceError


class Command(BaseCommand):
    """Remove the second factor of an account and end all its sign-ins."""

    help = "Remove the second factor of an account whose device and recovery codes are lost."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the argument."""
        parser.add_argument("username", help="the account")

    def handle(self, *_: object, **options: Any) -> None:
        """Remove it."""
        user = get_user_model().objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"There is no account `{options['username']}`.")
        try:
            second_factor.disable(user, Actor("command line"))
        except ServiceError as error:
            raise CommandError(error.detail) from error
        self.stdout.write(
            f"Second factor of {options['username']} removed. All sign-ins of the account ended."
        )
