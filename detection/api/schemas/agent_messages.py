"""Schemas of tags that people give, and of messages for agents."""

from __future__ import annotations

from ninja import Field, Schema

from detection.api.schemas.common import Name128, Name256, ShortText, StrictSchema, with_fields_of
from detection.integrations.labels import MAX_LABELS
from detection.selectors.agent_messages import AgentMessageRow


class TagsSchema(StrictSchema):
    """The tags of an agent or a key."""

    tags: list[str] = Field(max_length=MAX_LABELS, description="All its tags, of 1 to 64 characters.")


class AgentMessageRequestSchema(StrictSchema):
    """A message for a session or an agent."""

    session: Name256 = Field("", description="Your name for the session that gets it.")
    agent: Name128 = Field("", description="Or the agent: its session that calls next gets it.")
    text: str = Field(min_length=1, max_length=1000, description="The message.")


class AgentMessageQuerySchema(Schema):
    """Which messages."""

    session: ShortText = Field("", description="Only messages for this session.")
    agent: ShortText = Field("", description="Only messages for this agent.")
    limit: int = Field(100, ge=1, le=500, description="How many, newest first.")


@with_fields_of(AgentMessageRow)
class AgentMessageSchema(Schema):
    """A message that a person left for an agent."""
