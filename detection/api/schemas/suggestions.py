"""Schemas of suggestions."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from detection.api.schemas.common import PageSchema, Reason, StrictSchema

SuggestionState = Literal["open", "accepted", "rejected"]


class SuggestionQuerySchema(Schema):
    """Which suggestions."""

    state: SuggestionState = Field("open", description="Open ones, or those that a person has decided about.")


class SuggestionWhatIfSchema(Schema):
    """The latest what-if of exactly this change."""

    id: str = Field(description="Id of the what-if.")
    state: str = Field(description="State of the what-if.")
    lost: int | None = Field(
        description="Incidents that only the current policy finds; null before its first result."
    )
    gained: int | None = Field(description="Incidents that only the changed policy finds.")


class SuggestionSchema(Schema):
    """A change of policy that the labels of incidents speak for."""

    id: str = Field(description="The same for the same suggestion, whenever it is read.")
    kind: Literal["limit", "poll", "volatile_argument", "volatile_result"] = Field(
        description="What is suggested: another limit, a tool that polls, arguments or fields of results to ignore."
    )
    words: str = Field(description="What it changes.")
    reason: str = Field(description="What speaks for it.")
    labels: int = Field(description="Labelled incidents behind it.")
    incidents: list[str] = Field(description="Ids of some of them; empty for a decided suggestion.")
    change: dict[str, Any] = Field(
        description="The override or tool rule that accepting it stores, in the form of `POST /what-if`."
    )
    what_if: SuggestionWhatIfSchema | None = Field(description="The latest what-if of this change.")
    state: SuggestionState = Field(description="Whether a person has decided about it.")
    decided_by: str | None = Field(description="Who decided.")
    decided_at: datetime | None = Field(description="When.")
    note: str = Field(description="The reason given with the decision.")


class MissingLabelsSchema(Schema):
    """A tool whose labels are not enough for a limit yet."""

    tool: str = Field(description="The tool.")
    labels: int = Field(description="Its labelled incidents.")
    missing: int = Field(description="Further labels that are needed.")


class SuggestionsSchema(PageSchema[SuggestionSchema]):
    """Suggestions, and how far the labels go."""

    labels: int = Field(description="Labelled incidents of the last 90 days, at most the newest 300.")
    needed: int = Field(description="Labelled incidents of a tool or model that a limit needs.")
    nearest: list[MissingLabelsSchema] = Field(description="Tools that are closest to it.")


class AcceptRequestSchema(StrictSchema):
    """How to accept a suggestion."""

    note: Reason = Field("", description="Reason, recorded with the policy.")
    expires_at: datetime | None = Field(
        None, description="When the change ends by itself, at most 365 days ahead. Null: it does not expire."
    )


class RejectRequestSchema(StrictSchema):
    """How to reject a suggestion."""

    note: Reason = Field("", description="Reason, recorded in the audit log.")


class TryRequestSchema(StrictSchema):
    """How to try a suggestion."""

    days: int = Field(7, description="How far back the sessions go: 7 or 30.")
