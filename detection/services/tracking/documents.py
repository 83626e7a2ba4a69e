"""Approvals as JSON documents, for the API and for the long poll."""

from __future__ import annotations

from typing import cast

from detection.engine import wire_shapes
from detection.engine.calls import Decision
from detection.models import Approval, EventType
from detection.selectors.packed_events import events_of
from detection.selectors.record_rows import ApprovalRow, wait_url
from detection.selectors.row_fields import document_of

ASKED = "An operator has been asked. Continue with something else, and make this call again later."
"""Message for the model of a coding agent that cannot wait for the decision."""
MAX_NAMESAKES = 8
"""Calls of the same id that are looked at: model servers reuse ids."""


def hook_document(approval: Approval, shape: wire_shapes.Shape) -> dict[str, object]:
    """Return an approval as the response to the hook that waits for it; while it is open, the call does not run."""
    decision, message = cast("Decision", approval.decision or "hold"), approval.message
    if approval.is_open:
        message = f"The call is on hold. {approval.summary}. {ASKED}"
    rendered = wire_shapes.render(shape, decision, "" if decision == "allow" else message, approval.call_id)
    assert isinstance(rendered, dict)  # noqa: S101 - of the shapes, only plain text is no object
    return rendered


def approval_reference(approval: Approval, call_id: str = "") -> dict[str, object]:
    """Return the `approval` object of the verdict of a held call; `call_id` as in `wait_url`."""
    deadline = approval.deadline.isoformat()
    return {"id": approval.public_id, "deadline": deadline, "wait_url": wait_url(approval, call_id)}


def _call_of(approval: Approval, call_id: str) -> tuple[str, str]:
    """Return id and tool of the call of this id that waits for an approval; of its first call for any other id."""
    if call_id not in ("", approval.call_id):
        calls = events_of(approval.session, EventType.CALL, after_seq=approval.seq - 1)
        waiting = calls.filter(call_id=call_id)
        for tool, verdict in waiting.order_by("-seq").values_list("tool", "verdict")[:MAX_NAMESAKES]:
            if verdict is not None and verdict.approval == approval.public_id:
                return call_id, tool
    return approval.call_id, approval.tool


def approval_document(
    approval: Approval, shape: wire_shapes.Shape | None = None, call_id: str = ""
) -> dict[str, object]:
    """Return an approval, with its message rendered in a wire shape if there is one and it is decided.

    Of several calls that wait for it, the rendered message is for the one of `call_id`.
    """
    document = document_of(approval, ApprovalRow)
    if shape and approval.decision:
        decision = cast("Decision", approval.decision)
        its_id, tool = _call_of(approval, call_id)
        document["rendered"] = wire_shapes.render(
            shape, decision, approval.message, its_id, approval.session.model, tool
        )
    return document
