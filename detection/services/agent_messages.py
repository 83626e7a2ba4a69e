"""Messages that people leave for agents: each is handed out once, with the next verdict on a call."""

from __future__ import annotations

from typing import Final

from django.db import transaction
from django.db.models import F, QuerySet

from detection import clock
from detection.engine.scopes import MAX_NAME_CHARACTERS
from detection.models import AgentMessage, Project
from detection.services import audit
from detection.services.audit import SYSTEM, Actor
from detection.services.errors import Conflict, Invalid, found

MAX_CHARACTERS: Final = 1000
MAX_WAITING: Final = 100
"""Messages that wait for one session or agent; more are a mistake of a program."""


def leave(project_id: int, text: str, actor: Actor, *, session: str = "", agent: str = "") -> AgentMessage:
    """Leave a message for a session, or for whichever session of an agent calls next.

    Raises
    ------
    Invalid
        Unless it is for one of both, and the text has 1 to `MAX_CHARACTERS` characters.
    Conflict
        ``too_many_waiting`` when `MAX_WAITING` wait already.
    """
    text = text.strip()
    if bool(session) == bool(agent):
        raise Invalid("A message is for either a session or an agent.", field="session")
    if len(agent) > MAX_NAME_CHARACTERS["agent"] or not agent.isprintable():
        raise Invalid("`agent` must have at most 128 printable characters.", field="agent")
    if not 1 <= len(text) <= MAX_CHARACTERS or "\x00" in text:
        raise Invalid(f"`text` must have 1 to {MAX_CHARACTERS:,} characters.", field="text")
    with transaction.atomic():
        waiting = _waiting(project_id).filter(session=session, agent=agent)
        if waiting.count() >= MAX_WAITING:
            raise Conflict(f"{MAX_WAITING} messages wait already.", code="too_many_waiting")
        row = AgentMessage(
            project_id=project_id,
            session=session,
            agent=agent,
            text=text,
            created_by=actor.name[:150],
            created_at=clock.now(),
        )
        row.save(force_insert=True)
        about = {"session": session} if session else {"agent": agent}
        audit.record(
            actor, "agent_message.leave", row.public_id, project_id=project_id, after=about | {"text": text}
        )
        _raise_version(project_id)
    return row


@transaction.atomic
def withdraw(project_id: int, public_id: str, actor: Actor) -> AgentMessage:
    """Withdraw a message that no agent has got yet.

    Raises
    ------
    NotFound
        If the project has no such message.
    Conflict
        ``delivered`` when an agent has it.
    """
    rows = AgentMessage.objects.select_for_update(of=("self",)).filter(project_id=project_id)
    row = found(rows.filter(public_id=public_id).first())
    if row.delivered_at is not None:
        raise Conflict(f"The agent in session {row.delivered_to} has this message.", code="delivered")
    if row.withdrawn_at is None:
        row.withdrawn_at = clock.now()
        row.save(update_fields=["withdrawn_at"])
        audit.record(actor, "agent_message.withdraw", public_id, project_id=project_id)
        _raise_version(project_id)
    return row


def take(project_id: int, public_id: str, session: str) -> str:
    """Return the text of a waiting message for the agent of a session, and note its delivery; empty if it is gone.

    Must run in the transaction of the verdict that has it, after everything else of it was locked.
    """
    row = _waiting(project_id).select_for_update(of=("self",)).filter(public_id=public_id).first()
    if row is None:
        return ""
    row.delivered_at, row.delivered_to = clock.now(), session
    row.save(update_fields=["delivered_at", "delivered_to"])
    audit.record(
        SYSTEM, "agent_message.deliver", public_id, project_id=project_id, after={"session": session}
    )
    _raise_version(project_id)
    by = audit.shown_to_agents(row.created_by)
    return f"Message from {by}: {row.text}"


def _waiting(project_id: int) -> QuerySet[AgentMessage]:
    return AgentMessage.objects.filter(project_id=project_id, delivered_at=None, withdrawn_at=None)


def _raise_version(project_id: int) -> None:
    """Let every process read which messages wait at its next call."""
    Project.objects.filter(pk=project_id).update(policy_version=F("policy_version") + 1)
