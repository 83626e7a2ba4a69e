"""``demo``: runs scripted agents, so that every screen has content."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from detection.demo.player import KeyRejected, Player


class Command(BaseCommand):
    """Run all scenarios repeatedly until interrupted."""

    help = "Run scripted agents, healthy and stuck, through the public API."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--url", required=True, help="address of LoopGuard, such as http://127.0.0.1:8300"
        )
        parser.add_argument(
            "--key",
            required=True,
            help="API key with the scopes ingest and guard, preferably one marked as demo",
        )
        parser.add_argument(
            "--agents", type=int, default=6, metavar="N", help="agents that run at the same time (default 6)"
        )
        parser.add_argument(
            "--speed", type=float, default=1.0, metavar="X", help="2 runs twice as fast (default 1)"
        )
        parser.add_argument(
            "--rounds", type=int, metavar="N", help="end after N rounds of all scenarios (default: never)"
        )

    def handle(self, *_: object, **options: Any) -> None:
        """Run the agents."""
        if options["speed"] <= 0 or options["agents"] < 1:
            raise CommandError("--speed must be greater than 0, and --agents at least 1.")
        player = Player(
            url=options["url"].rstrip("/"),
            key=options["key"],
            agents=options["agents"],
            speed=options["speed"],
            rounds=options["rounds"],
            write=self.stdout.write,
        )
        try:
            asyncio.run(_until_interrupted(player))
        except* KeyRejected as rejected:
            raise CommandError(str(rejected.exceptions[0])) from None


async def _until_interrupted(player: Player) -> None:
    playing = asyncio.create_task(player.play())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, playing.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await playing
