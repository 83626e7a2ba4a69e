"""The only publisher: after commit, beside the request, coalesced per thing."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

from channels.layers import get_channel_layer
from django.db import transaction

from detection.background_publisher import Doorbell
from detection.stream.hints import Hint, approval_group, login_group, project_group

SEND_SECONDS = 1.0
bell = Doorbell("stream", pause_seconds=0.02)
_thread = threading.local()


def _send(group: str, message: dict[str, Any]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    # The layer keeps one connection an event loop, so the sending thread keeps one loop.
    if not hasattr(_thread, "loop"):
        _thread.loop = asyncio.new_event_loop()
    _thread.loop.run_until_complete(asyncio.wait_for(layer.group_send(group, message), SEND_SECONDS))


def _send_hints(project_id: int, hints: list[Hint]) -> None:
    _send(project_group(project_id), {"type": "hints", "hints": [hint.as_message() for hint in hints]})


def publish_after_commit(project_id: int, *hints: Hint) -> None:
    """Tell the watchers of a project once the transaction in hand is committed."""
    transaction.on_commit(lambda: publish_now(project_id, *hints), robust=True)


def publish_answer_after_commit(public_id: str) -> None:
    """Wake the agents that wait for an approval once the transaction in hand, which closed it, is committed."""
    transaction.on_commit(
        lambda: _ring_group(approval_group(public_id), {"type": "closed", "id": public_id}), robust=True
    )


def publish_now(project_id: int, *hints: Hint) -> None:
    """Tell the watchers at once; for what was stored outside a transaction."""
    bell.ring(project_id, partial(_send_hints, project_id), *hints)


def publish_sign_out(session_key: str) -> None:
    """Have the sockets that a sign-in opened closed."""
    _ring_group(login_group(session_key), {"type": "signed_out"})


def _ring_group(group: str, message: dict[str, Any]) -> None:
    bell.ring(group, lambda _: _send(group, message))
