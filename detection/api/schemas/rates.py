"""Schemas of rates per 1,000 calls."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from detection.api.schemas.common import Name256, Timestamp, with_fields_of
from detection.selectors.rates import RateComparison, RateRow

GroupedBy = Literal["total", "agent", "model", "tool", "detector", "integration", "project"]
ComparedBy = Literal["agent", "model", "tool", "detector", "integration"]


class PeriodSchema(Schema):
    """A period."""

    from_: Timestamp | None = Field(
        None, alias="from", description="Start of the period, inclusive. Seven days before `to` by default."
    )
    to: Timestamp | None = Field(None, description="End of the period, exclusive. Now by default.")


class RatesQuerySchema(PeriodSchema):
    """The period, and how to group it."""

    by: GroupedBy = Field(
        "total",
        description="What to group by. An integration is how the first event of a session came.",
    )
    demo: bool = Field(False, description="Include demo sessions.")


class RateComparisonQuerySchema(PeriodSchema):
    """Which two groups to compare."""

    by: ComparedBy = Field(description="What the two are.")
    first: Name256 = Field(description="The first agent, model, tool, detector or integration.")
    second: Name256 = Field(description="The second one.")
    tools: Literal["all", "shared"] = Field(
        "all",
        description="`shared`: only calls and loops of tools that both used; for agents, models and integrations.",
    )


@with_fields_of(RateRow)
class GroupRatesSchema(Schema):
    """The numbers of a group, and those of the period before."""


class RatesSchema(Schema):
    """Rates of a period."""

    from_: datetime = Field(alias="from", description="Start of the period, inclusive.")
    to: datetime = Field(description="End of the period, exclusive.")
    by: GroupedBy = Field(description="What the rows are grouped by.")
    items: list[GroupRatesSchema] = Field(description="The groups, most loops first, at most 1,000.")


@with_fields_of(RateComparison)
class RateComparisonSchema(Schema):
    """Two groups, and by which factor the first one loops more often."""
