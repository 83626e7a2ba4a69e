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
