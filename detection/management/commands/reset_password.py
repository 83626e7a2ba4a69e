"""``reset_password``: prints a link with which a person sets a new password."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.services.accounts import passwords
from detection.services.audit import Actor
from detection.services.errors import ServiceError


class Command(BaseCommand):
    """Print a link that resets the password of an account."""

    help = "Print a one-time link for setting a new password."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the argument."""
        parser.add_argument("username", help="the account")

    def handle(self, *_: object, **options: Any) -> None:
        """Print the link."""
        user = get_user_model().objects.filter(username=options["username"]).first()
        if user is None:
            raise CommandError(f"There is no account `{options['username']}`.")
        try:
            link = passwords.create_reset_link(user, Actor("command line"))
        except ServiceError as error:
            raise CommandError(error.detail) from error
        self.stdout.write(link)
        hours = settings.PASSWORD_RESET_TIMEOUT // 3600
        self.stderr.write(f"The link works once, for {hours} hours.")
