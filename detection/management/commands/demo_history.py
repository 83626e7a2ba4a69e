"""``demo_history``: plays the demo's two weeks of past runs once."""

from __future__ import annotations

from django.core.management.base import BaseCommand

from detection.services.demo.history import play_history


class Command(BaseCommand):
    """Play two weeks of scripted runs into the past of the first project and of a second one."""

    help = (
        "Play two weeks of scripted runs, healthy and stuck, into the past. Playing them again adds nothing."
    )
    requires_system_checks = ()

    def handle(self, *_: object, **__: object) -> None:
        """Play them."""
        number = play_history()
        self.stdout.write(f"Played {number} past sessions." if number else "The past of the demo is there.")
