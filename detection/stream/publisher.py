"""The only publisher: after commit, beside the request, coalesced per thing."""

from __future__ import annotations

from functools import partial

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

from detection.doorbell import Doorbell
from detection.stream.hints import Hint, project_group

bell = Doorbell("stream")


def _send(group: str, hint: Hint) -> None:
    layer = get_channel_layer()
    if layer is not None:
        async_to_sync(layer.group_send)(group, {"type": "hint", "hint": hint.as_message()})


def publish_after_commit(project_id: int, *hints: Hint) -> None:
    """Tell the watchers of a project once the transaction in hand is committed."""

    def ring() -> None:
        for hint in hints:
            bell.ring((project_id, hint), partial(_send, project_group(project_id), hint))

    transaction.on_commit(ring, robust=True)


def publish_now(project_id: int, *hints: Hint) -> None:
    """Tell the watchers at once; for what was stored outside a transaction."""
    for hint in hints:
        bell.ring((project_id, hint), partial(_send, project_group(project_id), hint))
