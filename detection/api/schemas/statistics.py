"""Schemas of the statistics."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from detection.api.schemas.common import FilterSchema, ShortText, Timestamp, with_fields_of
from detection.selectors.statistics import AfterReaction, JudgeShare, Numbers

GroupBy = Literal["total", "hour", "day", "kind", "tool", "agent", "model", "backend"]


class TimeSpanSchema(FilterSchema):
    """The time span and what is counted."""

    from_: Timestamp | None = Field(
        None,
        alias="from",
        description="Start of the time span, inclusive. Seven days before `to` by default.",
    )
    to: Timestamp | None = Field(None, description="End of the time span, exclusive. Now by default.")
    demo: bool = Field(True, description="Include demo sessions.")


class AfterReactionsQuerySchema(TimeSpanSchema):
    """The time span, what is counted, and how to group it."""

    by: Literal["total", "kind", "tool", "agent", "model"] = Field("total", description="What to group by.")


class StatisticsQuerySchema(TimeSpanSchema):
    """The time span, what is counted, and how to group it."""

    by: GroupBy = Field("total", description="What to group by.")
    sort: ShortText = Field(
        "",
        description="What to sort the groups by, with a leading minus for descending order: `incidents`, `name` (of "
        "detectors, their label), `checks`, `blocked`, `findings`, `loops` (labelled as loops), `confidence`, "
        "`recovery`, `calls` (in loops) or `cost` (of loops). Empty: most incidents first. Hours and days are always "
        "in order.",
    )


@with_fields_of(Numbers)
class StatisticsNumbersSchema(Schema):
    """The numbers of one group.

    Numbers of calls are null when grouped by detector or agent, and with filters on fields that calls do not have.
    """


class StatisticsGroupSchema(StatisticsNumbersSchema):
    """The numbers of one group, with its key."""

    key: str = Field(description="A time in UTC, a detector, a tool, an agent, a model or a backend.")


@with_fields_of(AfterReaction)
class AfterReactionSchema(Schema):
    """What agents did after the reactions of one rung."""


class AfterReactionsSchema(Schema):
    """What agents did after reactions, in groups."""

    from_: datetime = Field(alias="from", description="Start of the time span, inclusive.")
    to: datetime = Field(description="End of the time span, exclusive.")
    by: str = Field(description="What the rows are grouped by.")
    items: list[AfterReactionSchema] = Field(
        description="The rungs of each group, in the order of the ladder."
    )


@with_fields_of(JudgeShare)
class JudgeOutcomeSchema(Schema):
    """How often the judge gave one outcome, and what that cost."""


class FalseAlarmsSchema(Schema):
    """Incidents that people labelled as false alarms for one reason."""

    reason: str | None = Field(description="Why they are not loops. Null if no reason was given.")
    count: int = Field(description="Number of incidents.")


class StatisticsSchema(Schema):
    """Statistics of a time span."""

    from_: datetime = Field(alias="from", description="Start of the time span, inclusive.")
    to: datetime = Field(description="End of the time span, exclusive.")
    by: GroupBy = Field(description="What the rows are grouped by.")
    counted_at: datetime | None = Field(description="Calls evaluated after this time are not counted yet.")
    total: StatisticsNumbersSchema = Field(description="Totals of the time span.")
    items: list[StatisticsGroupSchema] = Field(description="The groups.")
    after_reactions: list[AfterReactionSchema] = Field(description="What agents did after each rung.")
    false_alarms: list[FalseAlarmsSchema] = Field(description="False alarms by reason.")
    judge: list[JudgeOutcomeSchema] = Field(description="What the judge decided.")
    is_cut: bool = Field(description="Whether groups beyond the first 1,000 are missing.")
