"""Schemas of approvals and remembered decisions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import ConfigDict

from detection.api.schemas.common import (
    FilterQuerySchema,
    PageQuerySchema,
    ShortText,
    StrictSchema,
    with_fields_of,
)
from detection.selectors.record_rows import ApprovalRow
from detection.selectors.row_fields import Shown
from detection.services.approvals.decisions import MAX_RAISE

ChoiceName = Literal["skip", "allow_once", "raise", "exempt", "disable", "stop"]


class ApprovalQuerySchema(PageQuerySchema, FilterQuerySchema):
    """Filters of the approval list."""

    state: Literal["", "open", "decided", "expired", "withdrawn"] = Field("", description="State.")
    session: ShortText = Field("", description="Your name for the session.")
    tool: ShortText = Field("", description="Tool.")
    agent: ShortText = Field("", description="Agent.")


@with_fields_of(ApprovalRow)
class ApprovalSchema(Schema):
    """A held call that a person or the judge decides."""

    rendered: dict[str, Any] | str | None = Field(
        None, description="The message in the wire shape that `render` names."
    )


class HeldGroupQuerySchema(PageQuerySchema, FilterQuerySchema):
    """Filters of the list of groups."""

    session: ShortText = Field("", description="Your name for the session.")
    tool: ShortText = Field("", description="Tool.")
    agent: ShortText = Field("", description="Agent.")


class HeldGroupSchema(Schema):
    """Held calls that one decision is for."""

    group: str = Field(
        description="Id of the loop or containment that holds them. Where there is neither, of identical calls."
    )
    held_by: Literal["loop", "containment", "call"] = Field(description="What the group stands for.")
    summary: str = Field(description="What was detected, as a sentence, of the oldest.")
    approvals: int = Field(description="Number of approvals that wait for a person.")
    sessions: int = Field(description="Number of their sessions.")
    calls: int = Field(description="Number of calls that wait.")
    variants: int = Field(description="Number of different calls, by tool and arguments.")
    tools: list[str] = Field(description="The first 20 tools by name.")
    tool_count: int = Field(description="Number of tools.")
    agents: list[str] = Field(description="The first 20 agents by name.")
    agent_count: int = Field(description="Number of agents.")
    kinds: list[str] = Field(description="Detectors, or `containment`.")
    unattended: list[str] = Field(
        description="The unattended reactions that apply if nobody decides in time."
    )
    oldest_at: datetime = Field(description="When the first call was held.")
    first_deadline: datetime = Field(description="When the first unattended reaction applies.")
    session: str = Field(description="Session of the oldest.")
    arguments: str = Field(description="Arguments of the oldest call, at most 1,000 characters.")


class GroupDecisionSchema(Schema):
    """What became of a decision about a group."""

    id: str = Field(description="Id of the answer, for its undo.")
    group: str = Field(description="Id of the group.")
    choice: ChoiceName = Field(description="What was chosen.")
    raise_by: int = Field(description="For `raise`: by how much the limit is raised.")
    decided: int = Field(description="Approvals that it decided.")
    already_decided: int = Field(description="Approvals that another person decided meanwhile.")
    expired: int = Field(description="Approvals whose time ran out meanwhile.")
    withdrawn: int = Field(description="Approvals that were no longer needed.")
    left: int = Field(description="Approvals that wait on, because one answer decides at most 1,000.")
    undo_until: datetime | None = Field(
        description="Until when decisions that no agent has received can be undone. Null if the choice cannot be."
    )


class UndoneAnswerSchema(Schema):
    """What became of an undo."""

    id: str = Field(description="Id of the answer.")
    reopened: int = Field(description="Approvals that wait again.")
    handed_out: int = Field(
        description="Decisions that stay, because the agent has received them or has gone on."
    )
    changed: int = Field(
        description="Decisions that stay, because the deadline has passed, the session has ended or was stopped, or "
        "its loop waits for another decision."
    )


class DecisionRequestSchema(StrictSchema):
    """A decision."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"choice": "raise", "raise_by": 3}]})

    choice: ChoiceName = Field(
        description="What to do with the call. `stop` stops the session until someone resumes it."
    )
    raise_by: int = Field(0, ge=0, le=MAX_RAISE, description="For `raise`: by how much to raise the limit.")
    remember: bool = Field(
        False,
        description="Decide later approvals for this agent, tool and detector the same way, for 90 days. Not "
        "allowed for limits or `stop`.",
    )


class RulingSchema(Schema):
    """The judge's ruling on an approval."""

    approval: Annotated[str | None, Shown(column="approval__public_id")] = Field(
        description="Id of the approval."
    )
    at: datetime = Field(description="When the judge was consulted.")
    outcome: Literal["accepted", "denied", "unclear", "failed", "skipped", "obeyed"] = Field(
        description="Outcome of the consultation."
    )
    error: str = Field(description="Stable code of the error, if there was one.")
    reason: str = Field(description="The judge's reason.")
    guidance: str = Field(description="The judge's guidance. The agent receives it if the judge accepts.")
    rounds_proposed: int = Field(description="Rounds that the judge proposed.")
    rounds_granted: int = Field(description="Rounds, or calls of the loop, that were granted.")
    model: str = Field(description="Model of the judge.")
    latency_ms: int = Field(description="Latency in milliseconds.")
    cost_usd: float = Field(description="Cost in US dollars.")
    label: Annotated[Literal["right", "wrong"] | None, Shown(is_optional=True)] = Field(
        description="A person's label of the ruling."
    )
    labelled_by: Annotated[str | None, Shown(is_optional=True)] = Field(description="Who labelled it.")
    labelled_at: datetime | None = Field(description="When it was labelled.")


class RulingLabelRequestSchema(StrictSchema):
    """A label of a ruling."""

    label: Literal["right", "wrong", ""] = Field(
        description="Whether the ruling was right. Empty removes the label."
    )


class RememberedDecisionSchema(Schema):
    """A decision that applies to later sessions."""

    id: int = Field(description="Id of the remembered decision.")
    agent: str = Field(description="Agent.")
    tool: str = Field(description="Tool.")
    kind: str = Field(description="Detector.")
    choice: str = Field(description="What was chosen.")
    raise_by: int = Field(description="For `raise`: by how much the limit is raised.")
    times_used: int = Field(description="How often it was applied.")
    created_by: str = Field(description="Who decided.")
    created_at: datetime = Field(description="When it was created.")
    expires_at: datetime = Field(description="When it expires.")
