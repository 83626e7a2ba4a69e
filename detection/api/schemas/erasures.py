"""Schemas of erasures."""

from __future__ import annotations

from ninja import Field, Schema
from pydantic import model_validator

from detection.api.schemas.common import (
    Name128,
    Name256,
    PageQuerySchema,
    StrictSchema,
    with_fields_of,
)
from detection.selectors.erasures import ErasureRow
from detection.services.retention.erasure import MAX_OPEN


class ErasureRequestSchema(StrictSchema):
    """What to erase: one session, or all sessions of an agent."""

    session: Name256 = Field("", description="Your name for the session.")
    agent: Name128 = Field("", description="The agent, exactly as it names itself.")

    @model_validator(mode="after")
    def _one(self) -> ErasureRequestSchema:
        if bool(self.session) == bool(self.agent):
            raise ValueError("must name either a session or an agent")
        return self


class SessionErasuresRequestSchema(StrictSchema):
    """Which sessions to erase."""

    sessions: list[Name256] = Field(
        min_length=1,
        max_length=MAX_OPEN,
        description="Your names for the sessions, as a search has found them.",
    )


class ErasureQuerySchema(PageQuerySchema):
    """Which erasures: of one name, or all."""

    session: Name256 = Field("", description="Only erasures of this session.")
    agent: Name128 = Field("", description="Only erasures of this agent.")


@with_fields_of(ErasureRow)
class ErasureSchema(Schema):
    """An erasure: a request that waits for a worker, and then its receipt."""


class SessionErasuresSchema(Schema):
    """The erasures of several sessions."""

    items: list[ErasureSchema] = Field(description="A receipt for each session, in the order of the request.")
    not_found: list[str] = Field(description="Sessions of which nothing is stored.")
