"""Schemas of containments."""

from __future__ import annotations

from typing import Literal

from ninja import Field, Schema

from detection.api.schemas.common import Name128, Name256, Reason, StrictSchema, Timestamp, with_fields_of
from detection.selectors.containments import ContainmentRow

ScopeName = Literal["agent_tool", "tool", "family", "agent", "model", "tag", "key", "project", "server"]


class ContainmentRequestSchema(StrictSchema):
    """What to contain, and how."""

    scope: ScopeName = Field(
        description="What it is about. `agent_tool` is one tool of one agent, `family` a session with its sub-agents. "
        "`server` is for staff: no key may use it."
    )
    value: Name256 = Field(
        "",
        description="The agent, model, tag or session at the top of the family; the tool, in which `*` stands for any "
        "characters; the id of the key or token. Empty for the project.",
    )
    tool: Name128 = Field(
        "", description="For `agent_tool`: the tool, in which `*` stands for any characters."
    )
    reaction: Literal["stop", "hold", "block"] = Field(
        description="What happens to each call: `stop` ends the run, `hold` waits for an operator, `block` blocks the "
        "call while the agent continues."
    )
    reason: Reason = Field("", description="Reason, which agents read, too.")
    until: Timestamp | None = Field(None, description="When it ends by itself, at most 365 days ahead.")
    include_new: bool = Field(True, description="Whether it covers sessions that start later.")


class ContainmentPreviewSchema(Schema):
    """Whether a request only asks what it would reach."""

    preview: bool = Field(False, description="Only return what it would reach. Nothing changes.")


class ContainmentQuerySchema(Schema):
    """Which containments."""

    in_force: bool | None = Field(None, description="True for those in force, false for past ones.")
    limit: int = Field(100, ge=1, le=500, description="How many, newest first.")


@with_fields_of(ContainmentRow)
class ContainmentSchema(Schema):
    """Everything of a scope is stopped, held or blocked while a containment is in force."""
