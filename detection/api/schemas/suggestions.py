"""Schemas of suggestions."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from detection.api.schemas.common import PageSchema, Reason, StrictSchema

SuggestionState = Literal["open", "accepted", "rejected"]


class SuggestionQuerySchema(Schema):
    """Which suggestions."""

    state: SuggestionState = Field(
        "open", description="Open suggestions, or those that a person has decided."
    )


class SuggestionWhatIfSchema(Schema):
    """The latest what-if of exactly this change."""

    id: str = Field(description="Id of the what-if.")
    state: str = Field(description="State of the what-if.")
    lost: int | None = Field(
        description="Incidents that only the current policy finds; null before its first result."
    )
    gained: int | None = Field(description="Incidents that only the changed policy finds.")


class SuggestionSchema(Schema):
    """A policy change that labelled incidents support."""

    id: str = Field(description="Id of the suggestion. The same suggestion always has the same id.")
    kind: Literal["limit", "poll", "volatile_argument", "volatile_result"] = Field(
        description="What is suggested: another limit, a tool that polls, arguments or fields of results to ignore."
    )
    words: str = Field(description="What it changes.")
    reason: str = Field(description="Why it is suggested.")
    labels: int = Field(description="Number of labelled incidents that support it.")
    incidents: list[str] = Field(
        description="Ids of some of these incidents. Empty for a decided suggestion."
    )
    change: dict[str, Any] = Field(
        description="The override or tool rule that accepting it stores, in the form of `POST /what-if`."
    )
    what_if: SuggestionWhatIfSchema | None = Field(description="The latest what-if of this change.")
    state: SuggestionState = Field(description="Whether a person has decided, and how.")
    decided_by: str | None = Field(description="Who decided.")
    decided_at: datetime | None = Field(description="When it was decided.")
    note: str = Field(description="The reason given with the decision.")


class MissingLabelsSchema(Schema):
    """A tool without enough labels for a limit yet."""

    tool: str = Field(description="The tool.")
    labels: int = Field(description="Labelled incidents of this tool.")
    missing: int = Field(description="Number of labels still needed.")


class SuggestionsSchema(PageSchema[SuggestionSchema]):
    """Suggestions, and the labels they are based on."""

    labels: int = Field(description="Labelled incidents of the last 90 days, at most the newest 300.")
    needed: int = Field(description="Labelled incidents of a tool or model that a limit needs.")
    nearest: list[MissingLabelsSchema] = Field(description="Tools closest to a suggested limit.")


class AcceptRequestSchema(StrictSchema):
    """How to accept a suggestion."""

    note: Reason = Field("", description="Reason, recorded with the policy.")
    expires_at: datetime | None = Field(
        None, description="When the change expires, at most 365 days ahead. Null: never."
    )


class RejectRequestSchema(StrictSchema):
    """How to reject a suggestion."""

    note: Reason = Field("", description="Reason, recorded in the audit log.")


class TryRequestSchema(StrictSchema):
    """How to try a suggestion."""

    days: int = Field(7, description="Number of past days whose sessions are replayed: 7 or 30.")
