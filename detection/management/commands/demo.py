"""``manage.py demo``: scripted agents for a look at a dashboard that lives."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.demo.player import KeyRefused, Player


class Command(BaseCommand):
    """Plays the gallery until it is interrupted."""

    help = "Play believable agent runs, healthy and stuck, through the public API."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Name the options."""
        parser.add_argument(
            "--url", required=True, help="address of LoopGuard, such as http://127.0.0.1:8300"
        )
        parser.add_argument(
            "--key", required=True, help="API key with the scopes ingest and guard; best one marked as demo"
        )
        parser.add_argument(
            "--agents", type=int, default=6, metavar="N", help="agents at the same time (default 6)"
        )
        parser.add_argument(
            "--speed", type=float, default=1.0, metavar="X", help="2 plays twice as fast (default 1)"
        )
        parser.add_argument(
            "--rounds", type=int, metavar="N", help="end after N rounds of the gallery (default: never)"
        )

    def handle(self, *_: object, **options: Any) -> None:
        """Play."""
        if options["speed"] <= 0 or options["agents"] < 1:
            raise CommandError("--speed and --agents must be above 0.")
        player = Player(
            url=options["url"].rstrip("/"),
            key=options["key"],
            agents=options["agents"],
            speed=options["speed"],
            rounds=options["rounds"],
            tell=self.stdout.write,
        )
        try:
            asyncio.run(_until_told_to_stop(player))
        except* KeyRefused as refused:
            raise CommandError(str(refused.exceptions[0])) from None


async def _until_told_to_stop(player: Player) -> None:
    playing = asyncio.create_task(player.play())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, playing.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await playing
