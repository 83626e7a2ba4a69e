"""Schemas of the statistics."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ninja import Field, Schema

from detection.api.schemas.common import FilterSchema, ShortText, Timestamp

GroupBy = Literal["total", "hour", "day", "kind", "tool", "model", "backend"]


class StatisticsQuerySchema(FilterSchema):
    """The time span, what is counted, and how to group it."""

    from_: Timestamp | None = Field(
        None,
        alias="from",
        description="Start of the time span, inclusive. Seven days before `to` by default.",
    )
    to: Timestamp | None = Field(None, description="End of the time span, exclusive. Now by default.")
    by: GroupBy = Field("total", description="What to group by.")
    demo: bool = Field(True, description="Include demo sessions.")
    sort: ShortText = Field(
        "",
        description="What to sort the groups by, with a leading minus for descending order: `incidents`, `name` (of "
        "detectors, their label), `checks`, `blocked`, `findings`, `loops` (labelled as loops), `confidence`, "
        "`recovery`, `calls` (in loops) or `cost` (of loops). Empty: most incidents first. Hours and days are always "
        "in order.",
    )


class StatisticsNumbersSchema(Schema):
    """The numbers of one group.

    Numbers of calls are null when grouped by detector, and with filters on fields that calls do not have.
    """

    checks: int | None = Field(description="Evaluated calls.")
    warned: int | None = Field(description="Calls with a warning.")
    blocked: int | None = Field(
        description="Calls that were blocked, held or stopped, "
        "without held and delayed calls that were allowed in the end."
    )
    token_count: int | None = Field(description="Tokens used.")
    cost_usd: float | None = Field(description="Cost of all calls in US dollars.")
    incidents: int = Field(description="Incidents.")
    blocked_incidents: int = Field(description="Incidents with blocked calls.")
    loops: int = Field(description="Loops. A loop that several detectors find is several incidents.")
    findings: int = Field(description="Detections, several per incident.")
    true_loops: int = Field(description="Incidents that people labelled as loops.")
    false_alarms: int = Field(description="Incidents that people labelled as false alarms.")
    precision: float | None = Field(description="Share of loops among the labelled incidents.")
    average_confidence: float | None = Field(description="Average confidence of the incidents, 0 to 1.")
    recovered: int = Field(description="Ended incidents with a reaction after which the agent recovered.")
    not_recovered: int = Field(
        description="The others with a reaction that ended or whose session is stopped."
    )
    recovery: float | None = Field(description="Share of `recovered` among the two. Null if both are 0.")
    loop_calls: int = Field(description="Counted calls of the incidents that nobody labelled false alarms.")
    loop_calls_blocked: int = Field(
        description="Blocked calls of the incidents, without held calls that were allowed later."
    )
    loop_cost_usd: float = Field(
        description="Cost of the incidents that nobody labelled false alarms, in US dollars."
    )
    saved_cost_usd_estimate: float | None = Field(
        description="Blocked calls in loops, each at the average cost of the calls of its loop, in US dollars. "
        "Null if no such cost is known."
    )


class StatisticsGroupSchema(StatisticsNumbersSchema):
    """The numbers of one group, with its key."""

    key: str = Field(description="A time in UTC, a detector, a tool, `backend/model` or a backend.")


class RecoverySchema(Schema):
    """What agents did after the reactions of one rung."""

    rung: str = Field(description="Rung of the escalation ladder.")
    recovered: int = Field(description="The agent recovered.")
    went_on: int = Field(description="The agent continued the loop.")
    stopped: int = Field(description="The session ended or was stopped.")
    share: float | None = Field(description="Share of the reactions after which the agent recovered.")


class JudgeOutcomeSchema(Schema):
    """How often the judge gave one outcome, and what that cost."""

    outcome: Literal["accepted", "denied", "unclear", "failed", "skipped", "obeyed"] = Field(
        description="Outcome of the consultation."
    )
    count: int = Field(description="Number of consultations.")
    average_latency_ms: float = Field(description="Average latency in milliseconds.")
    token_count: int = Field(description="Tokens used.")
    cost_usd: float = Field(description="Cost in US dollars.")
    right: int = Field(description="Rulings that people labelled right.")
    wrong: int = Field(description="Rulings that people labelled wrong.")


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
    recovery: list[RecoverySchema] = Field(description="What agents did after each rung.")
    false_alarms: list[FalseAlarmsSchema] = Field(description="False alarms by reason.")
    judge: list[JudgeOutcomeSchema] = Field(description="What the judge decided.")
    is_cut: bool = Field(description="Whether groups beyond the first 1,000 are missing.")
