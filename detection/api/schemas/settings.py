"""Schemas of overrides, tool rules and effective settings."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Field, Schema
from pydantic import ConfigDict

from detection.api.schemas.common import Name256, Reason, SettingSchema, ShortText, StrictSchema
from detection.selectors.row_fields import Shown
from detection.services.policies.overrides import override_version

_Version = Annotated[str, Shown(show=override_version)]
_EXPIRY = "When the values stored now take effect again, at most 365 days ahead. Null: never."
ToolClassName = Literal["", "other", "read", "change", "poll", "wait", "message", "fallible", "exempt"]


class RemovalQuerySchema(Schema):
    """The reason for deleting something."""

    note: Reason = Field("", description="Reason, recorded in the audit log.")


class OverrideQuerySchema(Schema):
    """The scope of an override. Without a backend, the project."""

    backend: ShortText = Field("", description="LLM backend.")
    model: ShortText = Field("", description="Model. Requires `backend`.")


class OverrideListQuerySchema(OverrideQuerySchema):
    """Which overrides to list. Without a name, all."""

    agent: ShortText = Field("", description="Agent.")


class OverrideRemovalQuerySchema(OverrideQuerySchema, RemovalQuerySchema):
    """The scope of an override, and the reason for deleting it."""


class OverrideRequestSchema(StrictSchema):
    """The settings of an override. Missing settings are inherited."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"values": {"max_repeats": 6, "mode": "ask"}, "note": "Slow search"}]}
    )

    values: dict[str, Any] = Field(description="Settings by name. An empty object deletes the override.")
    note: str = Field("", max_length=300, description="Reason, recorded in the audit log.")
    expires_at: datetime | None = Field(None, description=_EXPIRY)


class OverrideSchema(Schema):
    """A stored override."""

    scope: Annotated[
        Literal["server", "project", "agent", "backend", "model"], Shown(column="scope__kind")
    ] = Field(description="Scope.")
    agent: Annotated[str | None, Shown(is_optional=True)] = Field(description="Agent, of scope `agent`.")
    backend: Annotated[str | None, Shown(is_optional=True)] = Field(
        description="LLM backend, of scopes `backend` and `model`."
    )
    model: Annotated[str | None, Shown(is_optional=True)] = Field(description="Model, of scope `model`.")
    source: Annotated[str, Shown(show=lambda row: str(row.scope))] = Field(
        description="How the scope is named as the source of a setting."
    )
    values: dict[str, Any] = Field(description="Settings by name.")
    note: str = Field(description="Reason of the last change.")
    expires_at: datetime | None = Field(description="When the previous values take effect again.")
    updated_at: datetime | None = Field(description="When it was last changed.")
    version: _Version = Field(description="For `If-Match`, in quotes.")


class ToolRuleRequestSchema(StrictSchema):
    """What applies to the tools that match a pattern."""

    tool_class: ToolClassName | None = Field(None, description="Tool class. Empty for the built-in class.")
    ignore_arguments: list[Name256] = Field(
        [], max_length=50, description="Arguments that identity ignores, as in `request_id`."
    )
    volatile_result_fields: list[Name256] = Field(
        [], max_length=50, description="Fields of results that are ignored when results are compared."
    )
    values: dict[str, Any] = Field({}, description="Settings by name.")
    exempt: bool = Field(False, description="Exempt the tools from detection.")
    note: str = Field("", max_length=300, description="Reason, recorded in the audit log.")
    expires_at: datetime | None = Field(None, description=_EXPIRY)


class ToolRuleSchema(Schema):
    """A stored tool rule."""

    pattern: str = Field(description="Glob of tool names.")
    tool_class: Annotated[str | None, Shown(is_optional=True)] = Field(
        description="Tool class. Null for the built-in class."
    )
    ignore_arguments: list[str] = Field(description="Arguments that identity ignores.")
    volatile_result_fields: list[str] = Field(description="Fields of results that are ignored.")
    values: dict[str, Any] = Field(description="Settings by name.")
    exempt: bool = Field(description="Whether the tools are exempt from detection.")
    note: str = Field(description="Reason of the last change.")
    expires_at: datetime | None = Field(description="When the previous values take effect again.")
    updated_at: datetime = Field(description="When it was last changed.")
    version: _Version = Field(description="For `If-Match`, in quotes.")


class PolicyQuerySchema(Schema):
    """The call to which the settings apply."""

    agent: ShortText = Field("", description="Agent.")
    backend: ShortText = Field("", description="LLM backend.")
    model: ShortText = Field("", description="Model.")
    tool: ShortText = Field("", description="Tool.")
    session: ShortText = Field("", description="Your name for the session.")


class EffectivePolicySchema(Schema):
    """The effective settings of a call."""

    agent: str = Field(description="Agent.")
    backend: str = Field(description="LLM backend.")
    model: str = Field(description="Model.")
    tool: str = Field(description="Tool.")
    session: str | None = Field(description="Your name for the session.")
    policy: dict[str, SettingSchema] = Field(description="Every setting with its source.")
