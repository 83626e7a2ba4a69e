"""A question as both doors show it: the API, and the one that waits."""

from __future__ import annotations

from typing import Any

from detection.engine import texts
from detection.models import Question
from detection.services.asking import as_wire


def question_document(question: Question, shape: str = "") -> dict[str, Any]:
    """Return a question as JSON, with the message in a wire shape if one is named and there is an answer."""
    document: dict[str, Any] = {
        "id": question.public_id,
        "state": question.state,
        "asked_of": question.asked_of,
        "session": question.session.external_id,
        "agent": question.agent,
        "tool": question.tool,
        "call_id": question.call_id,
        "held_calls": question.held_calls,
        "kind": question.kind,
        "count": question.count,
        "limit": question.limit,
        "summary": question.summary,
        "incident": question.incident.public_id if question.incident else None,
        "asked_at": question.asked_at.isoformat(),
        "deadline": question.deadline.isoformat(),
        "unattended": question.unattended,
        "decision": question.decision or None,
        "choice": question.choice or None,
        "raised_by": question.raised_by,
        "message": question.message,
        "reason": question.reason,
        "answered_by": question.answered_by or None,
        "answered_at": question.answered_at.isoformat() if question.answered_at else None,
        "wait_url": as_wire(question)["wait_url"],
    }
    if shape and question.decision:
        document["rendered"] = texts.render(
            shape,  # type: ignore[arg-type]
            question.decision,  # type: ignore[arg-type]
            question.message,
            question.call_id,
            question.session.model,
        )
    return document
