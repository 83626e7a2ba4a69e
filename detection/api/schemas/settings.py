"""The stored tiers, the tool rules, and what holds."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from detection.api.schemas.common import Name256, Setting, Strict, Word

ToolClass = Literal["", "other", "read", "change", "poll", "wait", "message", "fallible", "exempt"]


class TierIn(Strict):
    """Settings of a tier. What is left out is inherited; no settings at all remove the tier."""

    values: dict[str, Any]
    note: str = Field("", max_length=300, description="Why.")


class TierOut(Schema):
    """A stored tier."""

    scope: Literal["server", "project", "backend", "model"]
    backend: str | None
    model: str | None
    source: str
    values: dict[str, Any]
    note: str
    updated_at: datetime | None


class ToolRuleIn(Strict):
    """What is special about the tools that a pattern matches."""

    tool_class: ToolClass | None = Field(None, description="Empty: the shipped class.")
    ignore_arguments: list[Name256] = Field([], max_length=50)
    volatile_result_fields: list[Name256] = Field([], max_length=50)
    values: dict[str, Any] = {}
    exempt: bool = False
    note: str = Field("", max_length=300)


class ToolRuleOut(Schema):
    """A stored tool rule."""

    pattern: str
    tool_class: str | None
    ignore_arguments: list[str]
    volatile_result_fields: list[str]
    values: dict[str, Any]
    exempt: bool
    note: str
    updated_at: datetime


class PolicyQuery(Schema):
    """Where the settings are to hold."""

    backend: Word = ""
    model: Word = ""
    tool: Word = ""
    session: Word = ""


class PolicyOut(Schema):
    """What holds, each setting with its source."""

    backend: str
    model: str
    tool: str
    session: str | None
    policy: dict[str, Setting]
