"""Writes the activity of loops with its audit entry, in the transaction of the change."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from detection.models import Loop, LoopActivity
from detection.services import audit
from detection.services.audit import Actor
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

MAX_NOTE_CHARACTERS = 1000


def record(
    loop: Loop,
    actor: Actor,
    action: str,
    note: str = "",
    *,
    before: dict[str, object] | None = None,
    after: dict[str, object] | None = None,
    **fields: Any,
) -> LoopActivity:
    """Append an action to a loop's activity and to the audit.

    Parameters
    ----------
    before, after
        Changed fields with their values; `before` is what an undo restores.
    fields
        Further columns of the row.
    """
    entry = LoopActivity.objects.create(
        loop=loop,
        actor=actor.name[:150],
        actor_user_id=actor.user_id,
        action=action,
        note=note[:MAX_NOTE_CHARACTERS],
        before=before or {},
        bulk_action_id=actor.bulk_action_id,
        **fields,
    )
    shown = {**(after or {}), **({"note": note} if note else {})}
    audit.record(
        actor,
        f"loop.{action}",
        loop.public_id,
        project_id=loop.project_id,
        before=before,
        after=shown or None,
    )
    publish_after_commit(loop.project_id, Hint("incident", "", action))
    return entry


def plain(value: Any) -> Any:
    """Return a value as it is stored in JSON."""
    return value.isoformat() if isinstance(value, datetime) else value
