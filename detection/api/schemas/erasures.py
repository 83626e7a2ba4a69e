"""Schemas of erasures."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema
from pydantic import model_validator

from detection.api.schemas.common import Name128, Name256, PageQuerySchema, StrictSchema


class ErasureRequestSchema(StrictSchema):
    """What to erase: one session, or all sessions of an agent."""

    session: Name256 = Field("", description="Your name for the session.")
    agent: Name128 = Field("", description="The agent, exactly as it names itself.")

    @model_validator(mode="after")
    def _one(self) -> ErasureRequestSchema:
        if bool(self.session) == bool(self.agent):
            raise ValueError("must name either a session or an agent")
        return self


class ErasureQuerySchema(PageQuerySchema):
    """Which erasures: of one name, or all."""

    session: Name256 = Field("", description="Only erasures of this session.")
    agent: Name128 = Field("", description="Only erasures of this agent.")


class ErasureSchema(Schema):
    """An erasure: a request that waits for a worker, and then its receipt."""

    id: str = Field(description="Id of the erasure.")
    of: Literal["session", "agent"] = Field(description="What is erased.")
    name_digest: str = Field(
        description="Digest of the name, keyed with a secret of the project. The name itself is not kept."
    )
    state: Literal["waiting", "finished", "failed"] = Field(
        description="Whether everything has been removed. A failed erasure is retried when it is requested again."
    )
    error: str = Field(description="What ended the last attempt; empty if nothing did.")
    requested_by: str = Field(description="Who requested it.")
    requested_at: datetime = Field(description="When it was requested.")
    finished_at: datetime | None = Field(description="When everything was removed.")
    removed: dict[str, int] = Field(description="Number of removed rows by kind, so far.")
