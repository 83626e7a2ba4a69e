"""`new_secrets`: a password of the operator and an API key, shown on the terminal that asks for them."""

from django.core.management.base import BaseCommand

from detection.services.maintenance.first_start import FirstStart, new_secrets


def show(command: BaseCommand, made: FirstStart) -> None:
    """Print login and key."""
    command.stdout.write(f"Sign in as {made.username} with {made.password}")
    command.stdout.write(f"API key {made.api_key}")
    command.stdout.write("Password and key are shown only once. `new-secrets` creates new ones.")


class Command(BaseCommand):
    """Create them, and the first project if there is none. Earlier keys stay valid."""

    help = "Create a new password of the operator and an additional API key, and show them once."
    requires_system_checks = ()

    def handle(self, *_: object, **__: object) -> None:
        """Create and print them."""
        show(self, new_secrets())
