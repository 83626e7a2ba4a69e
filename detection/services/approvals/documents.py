"""An approval as both doors show it: the API, and the one that waits."""

from __future__ import annotations

from typing import Any

from detection.engine import messages
from detection.models import Approval
from detection.services.approvals.open_approvals import as_wire


def approval_document(approval: Approval, shape: str = "") -> dict[str, Any]:
    """Return an approval as JSON, with the message in a wire shape if one is named and there is an answer."""
    document: dict[str, Any] = {
        "id": approval.public_id,
        "state": approval.state,
        "decider": approval.decider,
        "session": approval.session.external_id,
        "agent": approval.agent,
        "tool": approval.tool,
        "call_id": approval.call_id,
        "held_calls": approval.held_calls,
        "kind": approval.kind,
        "count": approval.count,
        "limit": approval.limit,
        "summary": approval.summary,
        "incident": approval.incident.public_id if approval.incident else None,
        "requested_at": approval.requested_at.isoformat(),
        "deadline": approval.deadline.isoformat(),
        "unattended": approval.unattended,
        "decision": approval.decision or None,
        "choice": approval.choice or None,
        "raised_by": approval.raised_by,
        "message": approval.message,
        "reason": approval.reason,
        "decided_by": approval.decided_by or None,
        "decided_at": approval.decided_at.isoformat() if approval.decided_at else None,
        "wait_url": as_wire(approval)["wait_url"],
    }
    if shape and approval.decision:
        document["rendered"] = messages.render(
            shape,  # type: ignore[arg-type]
            approval.decision,  # type: ignore[arg-type]
            approval.message,
            approval.call_id,
            approval.session.model,
        )
    return document
