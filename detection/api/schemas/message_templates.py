"""Schemas of the message templates."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema
from pydantic.config import JsonDict

from detection.api.schemas.common import StrictSchema
from detection.engine.wire_shapes import Shape
from detection.services.policies.message_templates import MAX_CHARACTERS

RungName = Literal[
    "warn",
    "delay",
    "reuse",
    "chance",
    "block",
    "finish",
    "ask",
    "judge",
    "skipped",
    "expired",
    "expired_stop",
    "denied",
    "contained",
    "stop",
]
ShapeName = Literal["", Shape]
# Described here; the service enforces it, with its own error codes.
_LENGTH: JsonDict = {"maxLength": MAX_CHARACTERS}


class ShapeQuerySchema(Schema):
    """Which template of a rung is meant."""

    shape: ShapeName = Field("", description="Wire shape. Empty for the template of all shapes.")


class MessageTemplateSchema(Schema):
    """A message template in use."""

    rung: RungName = Field(description="Rung of the escalation ladder.")
    shape: ShapeName = Field(description="Wire shape. Empty for all shapes without a template of their own.")
    text: str = Field(
        description="The template. Defaults may contain placeholders that custom ones cannot use."
    )
    is_own: bool = Field(description="Whether the project customized it. False for a default.")
    updated_at: datetime | None = Field(description="When it was last changed. Null for a default.")


class MessageTemplateListSchema(Schema):
    """The message templates of a project."""

    items: list[MessageTemplateSchema] = Field(description="The templates, in the order of the rungs.")
    placeholders: list[str] = Field(description="Placeholders for custom templates, without the `$`.")
    max_characters: int = Field(description="Maximum length of a template.")
    version: int = Field(description="Increases with every change of a template or setting.")


class MessageTemplateRequestSchema(StrictSchema):
    """A custom template."""

    text: str = Field(
        json_schema_extra={"minLength": 1, **_LENGTH},
        description="The template. Placeholders start with `$`; write `$$` for a dollar sign.",
    )


class PreviewRequestSchema(StrictSchema):
    """A template to preview."""

    rung: RungName = Field(description="Rung of the escalation ladder.")
    text: str = Field("", description="The template. Empty for the default.", json_schema_extra=_LENGTH)


class PreviewSchema(Schema):
    """What an agent would receive after repeating a search four times."""

    rung: RungName = Field(description="Rung of the escalation ladder.")
    message: str = Field(description="The message.")
    rendered: dict[Shape, dict[str, Any] | str] = Field(description="The message in every wire shape.")
