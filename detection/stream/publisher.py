"""The only code that sends to the channel layer: after commit, in the background, one message per group."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from channels.layers import get_channel_layer
from django.db import transaction

from detection.background_publisher import BackgroundPublisher
from detection.stream.hints import Hint, approval_group, held_group, project_group

SEND_TIMEOUT_SECONDS = 1.0
PAUSE_SECONDS = 0.05
"""Hints within this time are sent together; pages wait longer before they fetch."""
publisher = BackgroundPublisher("stream", pause_seconds=PAUSE_SECONDS)
_thread = threading.local()


def publish_after_commit(project_id: int, *hints: Hint) -> None:
    """Send hints to the pages of a project once the current transaction is committed."""
    transaction.on_commit(lambda: publish_now(project_id, *hints), robust=True)


def publish_now(project_id: int, *hints: Hint) -> None:
    """Send hints to the pages of a project now; for changes made outside a transaction."""
    publisher.enqueue(project_id, partial(_send_hints, project_id), *hints)


def publish_decision_after_commit(approval_id: str) -> None:
    """Wake the agents that wait for an approval, by public id, once the current transaction is committed."""
    transaction.on_commit(
        lambda: _publish(approval_group(approval_id), {"type": "closed", "id": approval_id}), robust=True
    )


def _publish(group: str, message: dict[str, object]) -> None:
    publisher.enqueue(group, lambda _: _send(group, message))


def _send_hints(project_id: int, hints: list[Hint]) -> None:
    _send(project_group(project_id), {"type": "hints", "hints": [hint.as_message() for hint in hints]})
    if any(hint.topic == "approval" for hint in hints):
        # Without a name: whether the person may still see it is decided when the page asks.
        _send(held_group(project_id), {"type": "hints", "hints": [Hint("held").as_message()]})


def _send(group: str, message: dict[str, object]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    # The channel layer keeps one connection per event loop, so the sending thread keeps one loop.
    if not hasattr(_thread, "loop"):
        _thread.loop = asyncio.new_event_loop()
    _thread.loop.run_until_complete(asyncio.wait_for(layer.group_send(group, message), SEND_TIMEOUT_SECONDS))
