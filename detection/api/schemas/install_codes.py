"""Schemas of install codes."""

from __future__ import annotations

from typing import Literal

from ninja import Field, Schema

from detection.api.schemas.common import StrictSchema


class InstallCodeSchema(StrictSchema):
    """A code from Connect."""

    code: str = Field(max_length=64, description="The code, as the command of Connect has it.")
    machine: str = Field("", max_length=255, description="Where the key will be used, for its name.")


class InstalledKeySchema(Schema):
    """The key that a code became."""

    key: str = Field(description="The key. It is not stored and cannot be shown again.")
    name: str = Field(description="Its name in the list of keys.")
    project: str = Field(description="The project's name in URLs.")
    integration: str = Field(description="What it connects, such as `claude-code`.")
    scope: Literal["guard", "ingest"] = Field(description="Its only scope.")
