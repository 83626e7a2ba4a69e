"""Reads the messages that people left for agents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from detection.models import AgentMessage
from detection.selectors.row_fields import Shown


def _state(row: AgentMessage) -> str:
    if row.delivered_at is not None:
        return "delivered"
    return "withdrawn" if row.withdrawn_at is not None else "waiting"


@dataclass(frozen=True, slots=True)
class AgentMessageRow:
    """An `AgentMessage`."""

    # fmt: off
    public_id: Annotated[str, Shown("Id of the message.", name="id")]
    session: Annotated[str, Shown("The session that it is for.", is_optional=True)]
    agent: Annotated[str, Shown("The agent that it is for.", is_optional=True)]
    text: Annotated[str, Shown("The message.")]
    state: Annotated[str, Shown(
        "Whether it waits, was handed out with a verdict, or was withdrawn before.",
        choices=("waiting", "delivered", "withdrawn"), show=_state,
    )]
    created_by: Annotated[str, Shown("A user name, or `key:<id>`.")]
    created_at: Annotated[datetime, Shown("When it was left.")]
    delivered_at: Annotated[datetime | None, Shown("When it was handed out.")]
    delivered_to: Annotated[str, Shown("The session whose agent got it.", is_optional=True)]
    # fmt: on


def list_messages(
    project_id: int, *, session: str = "", agent: str = "", limit: int = 100
) -> list[AgentMessage]:
    """List the messages of a project, newest first; of a session or an agent where one is named."""
    rows = AgentMessage.objects.filter(project_id=project_id)
    rows = rows.filter(session=session) if session else rows
    return [*(rows.filter(agent=agent) if agent else rows)[:limit]]
