"""The only publisher: after commit, beside the request, coalesced per thing."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

from channels.layers import get_channel_layer
from django.db import transaction

from detection.doorbell import Doorbell
from detection.stream.hints import Hint, login_group, project_group, question_group

SEND_SECONDS = 1.0
bell = Doorbell("stream")
_thread = threading.local()


def _send(group: str, message: dict[str, Any]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    # The layer keeps one connection an event loop, so the sending thread keeps one loop.
    if not hasattr(_thread, "loop"):
        _thread.loop = asyncio.new_event_loop()
    _thread.loop.run_until_complete(asyncio.wait_for(layer.group_send(group, message), SEND_SECONDS))


def _send_hint(project_id: int, hint: Hint) -> None:
    _send(project_group(project_id), {"type": "hint", "hint": hint.as_message()})


def publish_after_commit(project_id: int, *hints: Hint) -> None:
    """Tell the watchers of a project once the transaction in hand is committed."""

    def ring() -> None:
        for hint in hints:
            bell.ring((project_id, hint), partial(_send_hint, project_id, hint))

    transaction.on_commit(ring, robust=True)


def publish_answer_after_commit(public_id: str) -> None:
    """Wake the agents that wait for a question once the transaction in hand, which closed it, is committed."""
    group = question_group(public_id)
    message = {"type": "closed", "id": public_id}
    transaction.on_commit(lambda: bell.ring(group, partial(_send, group, message)), robust=True)


def publish_now(project_id: int, *hints: Hint) -> None:
    """Tell the watchers at once; for what was stored outside a transaction."""
    for hint in hints:
        bell.ring((project_id, hint), partial(_send_hint, project_id, hint))


def publish_sign_out(session_key: str) -> None:
    """Have the sockets that a sign-in opened closed."""
    group = login_group(session_key)
    bell.ring(group, partial(_send, group, {"type": "signed_out"}))
